#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "base/signals.h"
#include "engine/worker.h"

namespace fastload {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMaxDepth = std::int64_t{1} << 31;  // sums with it cannot overflow

void check_padding(const Delivery& delivery, const std::string& name) {
  const std::string where = "field '" + name + "': ";
  if (!delivery.ragged) throw std::invalid_argument(where + "only ragged fields are padded");
  if (delivery.padding.multiple < 1) {
    throw std::invalid_argument(where + "samples are padded to a multiple of 1 or more");
  }
  if (std::cmp_not_equal(delivery.padding.element.size(), delivery.row_bytes)) {
    throw std::invalid_argument(where + "the padding must be one element, of " +
                                std::to_string(delivery.row_bytes) + " bytes");
  }
}

void check_images(const ImageDelivery& images, const Column& column) {
  const std::string where = "field '" + column.name + "': ";
  if (column.bounds != nullptr || column.stored != Stored::as_delivered) {
    throw std::invalid_argument(where + "ragged and converted fields hold no images");
  }
  if (images.stored_bytes() != column.row_bytes) {
    throw std::invalid_argument(where + "its samples are not of that size");
  }
  const auto& conversion = images.plan->spec().conversion;
  if (conversion && (conversion->stored == Number::boolean) != column.boolean) {
    throw std::invalid_argument(where + "booleans are read as booleans");
  }
}

// How the columns are delivered. Throws std::invalid_argument for what is impossible.
std::vector<Delivery> deliveries_of(const Table& table, const EngineOptions& options) {
  const auto columns = table.columns();
  for (std::size_t count : {options.paddings.size(), options.images.size()}) {
    if (count == 0 || count == columns.size()) continue;
    throw std::invalid_argument("one padding or image per column is needed, or none at all");
  }
  std::vector<Delivery> deliveries;
  std::size_t slot = 0;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    Delivery delivery{columns[c].delivered_bytes(), columns[c].bounds != nullptr};
    if (!options.paddings.empty() && options.paddings[c]) {
      delivery.padded = true;
      delivery.padding = *options.paddings[c];
      check_padding(delivery, columns[c].name);
    }
    if (!options.images.empty() && options.images[c]) {
      const ImageDelivery& images = *options.images[c];
      check_images(images, columns[c]);
      delivery.images = images;
      delivery.row_bytes = images.delivered_bytes();
    }
    delivery.slot = slot;
    slot += delivery.ragged ? 2 : 1;
    deliveries.push_back(std::move(delivery));
  }
  return deliveries;
}

}  // namespace

Engine::Engine(std::shared_ptr<const Table> table, std::shared_ptr<SlotPool> pool,
               std::shared_ptr<IndexSource> order, const EngineOptions& options)
    : table_(std::move(table)),
      pool_(std::move(pool)),
      order_(std::move(order)),
      options_(options),
      deliveries_(deliveries_of(*table_, options)),
      any_ragged_(std::any_of(deliveries_.begin(), deliveries_.end(),
                              [](const Delivery& delivery) { return delivery.ragged; })),
      draws_(options.wants_draws || std::any_of(deliveries_.begin(), deliveries_.end(),
                                                [](const Delivery& delivery) {
                                                  return delivery.images &&
                                                         delivery.images->plan->random();
                                                })),
      on_demand_(options.worker_count == 0),
      stats_(options.stats ? options.stats : std::make_shared<LoadStats>()),
      readahead_(*table_),
      consumer_(std::make_unique<Worker>(*table_, stopping_)) {
  if (options.worker_count < 0) throw std::invalid_argument("num_workers cannot be negative");
  if (options.depth < 1 || options.depth > kMaxDepth) {
    throw std::invalid_argument("depth must lie in [1, 2^31]");
  }
  table_->check_process();
  order_->on_change([this] { order_changed(); });
  try {
    start_workers(on_demand_ && table_->files().may_stall() ? 1 : options.worker_count);
  } catch (...) {  // no more threads to be had: those that run must not outlive this object
    order_->on_change(nullptr);
    stop();
    throw;
  }
}

void Engine::start_workers(int count) {
  const SignalsBlocked blocked;
  MutexLock lock(join_mutex_);
  for (int i = 0; i < count; ++i) {
    threads_.emplace_back([this] {
      {
        Worker worker(*table_, stopping_);
        run(worker);
      }
      MutexLock left(mutex_);
      --running_workers_;
      worker_left_.notify_all();
    });
    pthread_setname_np(threads_.back().native_handle(), "fastload");
    MutexLock started(mutex_);
    ++running_workers_;
  }
}

Engine::~Engine() {
  order_->on_change(nullptr);
  stop();
  const std::size_t demand = demand_bytes_.load();
  for (const std::unique_ptr<BatchTask>& task : tasks_) stats_->add_ready(task->done ? -1 : 0);
  tasks_.clear();
  if (demand > 0) pool_->remove_demand(demand);
}

void Engine::request_stop() {
  if (generation_ != fork_generation()) return;
  MutexLock lock(mutex_);
  stopping_.store(true);
  work_changed_.notify_all();
  batch_done_.notify_all();
  seat_free_.notify_all();
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
      worker_left_.wait_until(mutex_, deadline);
    }
  }
  stop();
  return true;
}

void Engine::check_alive() const {
  if (stopping_.load()) throw StoppedError("the iterator was stopped");
}

Engine::Result Engine::try_next(std::unique_ptr<BatchTask>& out) {
  if (generation_ != fork_generation()) {
    throw StoppedError("the iterator belongs to the parent process; make a new one here");
  }
  MutexLock lock(mutex_);
  const Result result = take(out);
  if (result == Result::batch) end_wait(true);
  return result;
}

// The batch that was due has come, or its error has, or the end.
void Engine::end_wait(bool came) {
  if (came && options_.counts_waits) stats_->count_wait(due_wait_ns_);
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
  while (consumer_seated_) {
    if (Clock::now() >= deadline) return Result::pending;
    seat_free_.wait_until(mutex_, deadline);
  }
  consumer_seated_ = true;
  const auto leave = [&]() FL_REQUIRES(mutex_) {
    consumer_seated_ = false;
    seat_free_.notify_one();
    const std::int64_t wait_ns = (Clock::now() - start).count();
    due_wait_ns_ += wait_ns;
    if (options_.counts_waits) stats_->add_wait(wait_ns);
  };
  try {
    const Result result = take_when_done(deadline, out);
    leave();
    if (result != Result::pending) end_wait(result == Result::batch);
    return result;
  } catch (...) {
    leave();
    end_wait(false);
    throw;
  }
}

// Works like any worker until the batch that is due is done: falling asleep and being woken costs
// more than gathering a small batch.
Engine::Result Engine::take_when_done(Clock::time_point deadline, std::unique_ptr<BatchTask>& out) {
  for (;;) {
    const Result result = take(out);
    if (result != Result::pending || Clock::now() >= deadline) return result;
    Claim claimed;
    // While the data are cold a claim may take long, and the consumer must be able to leave.
    if (running_workers_ == 0 || !(readahead_.cold() || table_->files().may_stall())) {
      claimed = claim();
    }
    if (claimed.task == nullptr) {
      if (on_demand_) work_changed_.notify_all();  // it waited for a consumer
      consumer_waits_ = true;
      batch_done_.wait_until(mutex_, deadline);
      consumer_waits_ = false;
      continue;
    }
    mutex_.unlock();
    work_on(*consumer_, claimed);
    mutex_.lock();
  }
}

Engine::Result Engine::take(std::unique_ptr<BatchTask>& out) {
  check_alive();
  if (tasks_.empty()) {
    return order_->state(delivered_) == IndexSource::State::kEnd ? Result::end : Result::pending;
  }
  if (!tasks_.front()->done) return Result::pending;
  std::unique_ptr<BatchTask> task = std::move(tasks_.front());
  tasks_.pop_front();
  ++delivered_;
  stats_->add_ready(-1);
  // For the same reason idle workers are woken when there is some work for them.
  const std::int64_t room = delivered_ + options_.depth - next_batch_;
  if (idle_workers_ > 0 && room >= std::max<std::int64_t>(1, options_.depth / 8)) {
    work_changed_.notify_all();
  }
  if (task->error) std::rethrow_exception(task->error);
  stats_->count_batch(task->indices.size(), task->layout.total_bytes(), task->missing.size(),
                      readahead_.cold());
  out = std::move(task);
  return Result::batch;
}

void Engine::recycle(std::unique_ptr<BatchTask> task) {
  constexpr std::size_t kSpares = 64;
  task->slots.clear();
  MutexLock lock(mutex_);
  if (spare_.size() < kSpares) spare_.push_back(std::move(task));
}

LoadFigures Engine::stats() const {
  return generation_ == fork_generation() ? stats_->read() : LoadFigures{};
}

}  // namespace fastload
