#include "engine/engine.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "engine/describe.h"

namespace fastload {
namespace {

using Clock = std::chrono::steady_clock;

// Idle workers are woken when a 1/kWakeShare of the depth has to be filled: a wake-up costs as much
// as a small batch, so a worker that wakes should find several; seven eighths are still ready then.
constexpr std::int64_t kWakeShare = 8;
// A consumer that waits for a batch this soon after it waited for another does little else.
constexpr auto kShortAbsence = std::chrono::microseconds(100);
// Tasks that are kept for later batches, with their memory for indices and layout. The default
// depth is at most this many batches.
constexpr std::size_t kMaxSpares = 64;

}  // namespace

Engine::Engine(std::shared_ptr<const Table> table, std::shared_ptr<SlotPool> pool,
               std::shared_ptr<IndexSource> order, const EngineOptions& options)
    : maker_(std::move(table), std::move(pool), options, stopping_),
      order_(std::move(order)),
      depth_(options.depth),
      worker_count_(static_cast<std::size_t>(options.worker_count)),
      counts_waits_(options.counts_waits),
      fills_cores_(worker_count_ > 1 && worker_count_ >= std::thread::hardware_concurrency()),
      on_demand_(options.worker_count == 0),
      stats_(options.stats ? options.stats : std::make_shared<LoadStats>()),
      consumer_(maker_) {
  maker_.table().check_process();
  order_->on_change([this] { order_changed(); });
  try {
    const bool may_stall = maker_.table().files().may_stall();
    start_workers(on_demand_ && may_stall ? 1 : options.worker_count);
  } catch (...) {  // the system has no more threads: those that run must not outlive this object
    order_->on_change(nullptr);
    stop();
    throw;
  }
}

Engine::~Engine() {
  order_->on_change(nullptr);
  stop();
  MutexLock lock(mutex_);
  for (const auto& task : tasks_) stats_->add_ready(task->done ? -1 : 0);
  tasks_.clear();  // before the maker returns its demand, so that the pool gives memory back then
}

void Engine::request_stop() {
  if (generation_ != fork_generation()) return;
  MutexLock lock(mutex_);
  stopping_.store(true);
  work_changed_.notify_all();
  batch_done_.notify_all();
  consumer_left_.notify_all();
}

void Engine::stop() {
  if (generation_ != fork_generation()) return;
  request_stop();
  MutexLock lock(join_mutex_);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool Engine::stop_until(Clock::time_point deadline) {
  if (generation_ != fork_generation()) return true;
  request_stop();
  {
    MutexLock lock(mutex_);
    while (running_workers_ > 0) {
      if (Clock::now() >= deadline) return false;
      worker_ended_.wait_until(mutex_, deadline);
    }
  }
  stop();
  return true;
}

void Engine::check_not_stopped() const {
  if (stopping_.load()) throw StoppedError("the iterator was stopped");
}

Engine::Result Engine::try_next(std::unique_ptr<BatchTask>& out) {
  if (generation_ != fork_generation()) {
    throw StoppedError("the iterator belongs to the parent process; make a new one here");
  }
  MutexLock lock(mutex_);
  const Result result = take(out);
  if (result == Result::kBatch) end_wait(true);
  return result;
}

// The next batch was delivered, or its error was, or the end.
void Engine::end_wait(bool delivered) {
  if (delivered && counts_waits_) stats_->count_wait(due_wait_ns_);
  due_wait_ns_ = 0;
}

bool Engine::is_ready() const {
  if (generation_ != fork_generation()) return true;
  const MutexLock lock(mutex_);
  if (stopping_.load()) return true;
  if (tasks_.empty()) return order_->state(delivered_) == IndexSource::State::kEnd;
  return tasks_.front()->done;
}

Engine::Result Engine::next(Clock::time_point deadline, std::unique_ptr<BatchTask>& out) {
  const Clock::time_point start = Clock::now();
  MutexLock lock(mutex_);
  while (has_consumer_) {
    if (Clock::now() >= deadline) return Result::kPending;
    consumer_left_.wait_until(mutex_, deadline);
  }
  has_consumer_ = true;
  const bool one_rested = one_rests();
  consumer_helps_ = !shares_batches_ && start - consumer_left_at_ < kShortAbsence;
  if (one_rested && !one_rests()) work_changed_.notify_all();
  const auto leave = [&]() FL_REQUIRES(mutex_) {
    has_consumer_ = false;
    consumer_left_.notify_one();
    consumer_left_at_ = Clock::now();
    const std::int64_t wait_ns = (consumer_left_at_ - start).count();
    due_wait_ns_ += wait_ns;
    if (counts_waits_) stats_->add_wait(wait_ns);
  };
  try {
    const Result result = work_until_due(deadline, out);
    leave();
    if (result != Result::kPending) end_wait(result == Result::kBatch);
    return result;
  } catch (...) {
    leave();
    end_wait(false);
    throw;
  }
}

// Works like a worker until the next batch is done: sleeping and being woken costs more than
// gathering a small batch.
Engine::Result Engine::work_until_due(Clock::time_point deadline, std::unique_ptr<BatchTask>& out) {
  for (;;) {
    const Result result = take(out);
    if (result != Result::kPending || Clock::now() >= deadline) return result;
    Claim claimed;
    if (running_workers_ == 0 || may_consumer_help()) claimed = claim();
    if (claimed.task == nullptr) {
      if (on_demand_) work_changed_.notify_all();  // its thread waits for a consumer
      consumer_waits_ = true;
      batch_done_.wait_until(mutex_, deadline);
      consumer_waits_ = false;
      continue;
    }
    mutex_.unlock();
    work_on(consumer_, claimed);
    mutex_.lock();
  }
}

Engine::Result Engine::take(std::unique_ptr<BatchTask>& out) {
  check_not_stopped();
  if (tasks_.empty()) {
    return order_->state(delivered_) == IndexSource::State::kEnd ? Result::kEnd : Result::kPending;
  }
  if (!tasks_.front()->done) return Result::kPending;
  std::unique_ptr<BatchTask> task = std::move(tasks_.front());
  tasks_.pop_front();
  ++delivered_;
  stats_->add_ready(-1);
  const std::int64_t room = delivered_ + depth_ - next_batch_;
  if (room >= std::max<std::int64_t>(1, depth_ / kWakeShare)) wake_workers();
  if (task->error) std::rethrow_exception(task->error);
  shares_batches_ = BatchMaker::is_shared(*task);
  stats_->count_batch(task->indices.size(), task->layout.total_bytes(), task->missing.size(),
                      maker_.is_cold());
  out = std::move(task);
  return Result::kBatch;
}

void Engine::recycle(std::unique_ptr<BatchTask> task) {
  task->slots.clear();
  MutexLock lock(mutex_);
  if (spare_.size() < kMaxSpares) spare_.push_back(std::move(task));
}

std::string Engine::describe_due() const {
  if (generation_ != fork_generation()) return "it belongs to the parent process";
  MutexLock lock(mutex_);
  if (tasks_.empty()) {
    const bool ready = order_->state(delivered_) == IndexSource::State::kReady;
    return ready ? "not started" : "waiting for indices";
  }
  const BatchTask& task = *tasks_.front();
  return task.done ? "ready" : describe_progress(maker_.table(), task);
}

LoadFigures Engine::stats() const {
  return generation_ == fork_generation() ? stats_->read() : LoadFigures{};
}

}  // namespace fastload
