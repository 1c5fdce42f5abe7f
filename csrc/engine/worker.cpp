// The workers of an engine: each claims the most urgent work, does it, and looks again.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/signals.h"
#include "engine/engine.h"

namespace fastload {

using Clock = std::chrono::steady_clock;

void Engine::start_workers(int count) {
  const SignalsBlocked blocked;
  MutexLock lock(join_mutex_);
  for (int i = 0; i < count; ++i) {
    threads_.emplace_back([this] {
      {
        Scratch scratch(maker_);
        run_worker(scratch);
      }
      MutexLock ending(mutex_);
      --running_workers_;
      worker_ended_.notify_all();
    });
    pthread_setname_np(threads_.back().native_handle(), "fastload");
    MutexLock started(mutex_);
    ++running_workers_;
  }
}

void Engine::run_worker(Scratch& scratch) {
  mutex_.lock();
  while (!stopping_.load()) {
    const bool rests = is_surplus();
    const Claim claimed = may_work() && !rests ? claim() : Claim{};
    if (claimed.task == nullptr) {
      const Clock::time_point start = Clock::now();
      ++idle_workers_;
      work_changed_.wait(mutex_);
      --idle_workers_;
      if (!rests) stats_->add_worker_wait((Clock::now() - start).count());
      continue;
    }
    mutex_.unlock();
    work_on(scratch, claimed);
    mutex_.lock();
  }
  mutex_.unlock();
}

// With worker_count 0 nothing is made before a consumer waits for it.
bool Engine::may_work() const {
  return !on_demand_ || (has_consumer_ && (tasks_.empty() || !tasks_.front()->done));
}

// Cold data may take long to read, and the consumer must be able to leave: workers read them.
bool Engine::may_consumer_help() const {
  return !(maker_.is_cold() || maker_.table().files().may_stall());
}

// See NOTE [Resting worker].
bool Engine::one_rests() const { return fills_cores_ && consumer_helps_ && may_consumer_help(); }

// Whether the worker that calls this, which is not idle, is the one that rests.
bool Engine::is_surplus() const {
  const int busy = running_workers_ - idle_workers_;
  return one_rests() && std::cmp_greater_equal(busy, worker_count_);
}

// Wakes the idle workers, unless only the one is idle that rests.
void Engine::wake_workers() {
  if (idle_workers_ > (one_rests() ? 1 : 0)) work_changed_.notify_all();
}

Engine::Claim Engine::claim() {
  const bool may_start =
      next_batch_ < delivered_ + depth_ && order_->state(next_batch_) == IndexSource::State::kReady;
  // Cold data are requested from the kernel some batches before they are copied.
  const bool start_early = maker_.is_cold() && unclaimed_.size() <= worker_count_;
  if (!unclaimed_.empty() && !(may_start && start_early)) {
    BatchTask* task = unclaimed_.front();
    const Claim claimed{task, task->next_piece++, false};
    if (task->next_piece == task->pieces.size()) unclaimed_.erase(unclaimed_.begin());
    return claimed;
  }
  if (!may_start) return {};
  if (spare_.empty()) spare_.push_back(std::make_unique<BatchTask>());
  tasks_.push_back(std::move(spare_.back()));
  spare_.pop_back();
  tasks_.back()->restart(next_batch_++);
  return {tasks_.back().get(), 0, true};
}

void Engine::work_on(Scratch& scratch, const Claim& claimed) {
  BatchTask& task = *claimed.task;
  if (claimed.starts) {
    start_batch(scratch, task);
  } else {
    gather(scratch, task, task.pieces[claimed.piece]);
  }
}

void Engine::start_batch(Scratch& scratch, BatchTask& task) {
  try {
    order_->take(task.number, task.indices, maker_.wants_draws() ? &task.draws : nullptr);
    maker_.prepare(scratch, task);
  } catch (...) {
    task.error = std::current_exception();
    task.pieces.clear();
  }
  if (task.pieces.empty()) {
    complete(task);
  } else if (BatchMaker::is_shared(task) || maker_.is_cold()) {
    publish(task);
  } else {
    // After its last piece the task is complete and may be gone.
    const std::size_t count = task.pieces.size();
    for (std::size_t i = 0; i < count; ++i) gather(scratch, task, task.pieces[i]);
  }
}

void Engine::gather(Scratch& scratch, BatchTask& task, Piece& piece) {
  if (maker_.gather(scratch, task, piece)) complete(task);
}

// Lets every thread claim pieces of a batch.
void Engine::publish(BatchTask& task) {
  MutexLock lock(mutex_);
  const auto later =
      std::find_if(unclaimed_.begin(), unclaimed_.end(),
                   [&](const BatchTask* other) { return other->number > task.number; });
  unclaimed_.insert(later, &task);
  wake_workers();
  if (consumer_waits_) batch_done_.notify_one();  // it may help
}

// No worker touches a task after this.
void Engine::complete(BatchTask& task) {
  MutexLock lock(mutex_);
  task.done = true;
  stats_->add_ready(1);
  if (consumer_waits_ && task.number == delivered_) batch_done_.notify_one();
}

void Engine::order_changed() {
  MutexLock lock(mutex_);
  if (idle_workers_ > 0) work_changed_.notify_all();
  if (consumer_waits_) batch_done_.notify_one();  // it may start the batch, or find the end
}

}  // namespace fastload
