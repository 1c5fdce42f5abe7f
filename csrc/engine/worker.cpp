// What a thread of the engine does: claim the most urgent thing, do it, look again.
#include "engine/worker.h"

#include <algorithm>

namespace fastload {
namespace {

using Clock = std::chrono::steady_clock;

// Batches up to this size are gathered by the thread that begins them; larger ones in pieces of it.
constexpr std::int64_t kPieceBytes = 4 << 20;
// Besides the batches that fill or are ready: one in the user's hands, the one before it, and one
// more of each for a user who looks back.
constexpr std::int64_t kHeldBatches = 4;
// So much is allocated when a run starts; more comes as it is needed.
constexpr std::size_t kReserveBytes = std::size_t{1} << 30;

}  // namespace

void Engine::run(Worker& worker) {
  mutex_.lock();
  while (!stopping_.load()) {
    const Claim claimed = claim();
    if (claimed.task == nullptr) {
      const Clock::time_point start = Clock::now();
      ++idle_workers_;
      work_changed_.wait(mutex_);
      --idle_workers_;
      worker_wait_ns_.fetch_add((Clock::now() - start).count(), std::memory_order_relaxed);
      continue;
    }
    mutex_.unlock();
    work_on(worker, claimed);
    mutex_.lock();
  }
  mutex_.unlock();
}

void Engine::order_changed() {
  MutexLock lock(mutex_);
  if (idle_workers_ > 0) work_changed_.notify_all();
  if (consumer_waits_) batch_done_.notify_one();  // it may begin the batch, or learn of the end
}

Engine::Claim Engine::claim() {
  const bool may_begin = next_batch_ < delivered_ + options_.depth &&
                         order_->state(next_batch_) == IndexSource::State::kReady;
  // Cold data are asked for some batches before they are copied.
  const bool begin_early =
      readahead_.cold() && open_.size() <= static_cast<std::size_t>(options_.worker_count);
  if (!open_.empty() && !(may_begin && begin_early)) {
    BatchTask* task = open_.front();
    const Claim claimed{task, task->next_piece++, false};
    if (task->next_piece == task->pieces.size()) open_.erase(open_.begin());
    return claimed;
  }
  if (!may_begin) return {};
  if (spare_.empty()) spare_.push_back(std::make_unique<BatchTask>());
  tasks_.push_back(std::move(spare_.back()));
  spare_.pop_back();
  tasks_.back()->restart(next_batch_++);
  return {tasks_.back().get(), 0, true};
}

void Engine::work_on(Worker& worker, const Claim& claimed) {
  BatchTask& task = *claimed.task;
  if (!claimed.begins) {
    gather(worker, task, task.pieces[claimed.piece]);
    return;
  }
  try {
    begin(worker, task);
  } catch (...) {
    task.error = std::current_exception();
    task.pieces.clear();
  }
  const bool shared = task.layout.total_bytes() > static_cast<std::size_t>(kPieceBytes);
  if (task.pieces.empty()) {
    complete(task);
  } else if (shared || readahead_.cold()) {
    publish(task);
  } else {
    // Each field is one piece. The last one completes the task, which may then be gone.
    const std::size_t samples = task.indices.size();
    for (std::size_t column = 0; column < row_bytes_.size(); ++column) {
      gather(worker, task, {column, 0, samples});
    }
  }
}

// From indices to empty slots.
void Engine::begin(Worker& worker, BatchTask& task) {
  order_->take(task.number, task.indices);
  table_->check_indices(task.indices);
  layout_batch(row_bytes_, static_cast<std::int64_t>(task.indices.size()), task.layout);
  announce(task.layout);
  for (std::size_t bytes : task.layout.field_bytes) task.slots.push_back(pool_->acquire(bytes));
  plan_pieces(task);
  task.pieces_left.store(task.pieces.size());
  task.piece_count.store(task.pieces.size());
  if (task.indices.empty()) return;
  readahead_.prepare(worker.monitor, worker.gatherer, task.indices);
}

// With the first batch: tells the pool how much is in circulation, and allocates it at once rather
// than when timing first asks for it.
void Engine::announce(const BatchLayout& layout) {
  std::size_t batch_bytes = 0;
  for (std::size_t bytes : layout.field_bytes) batch_bytes += SlotPool::capacity_for(bytes);
  const auto batches = static_cast<std::size_t>(options_.depth + kHeldBatches);
  std::size_t none = 0;
  if (layout.total_bytes() == 0 ||
      !demand_bytes_.compare_exchange_strong(none, batch_bytes * batches))
    return;
  pool_->add_demand(batch_bytes * batches);
  const SlotPoolStats pool = pool_->stats();
  if (pool.used_bytes + pool.free_bytes >= batch_bytes * batches) return;  // of an earlier epoch
  std::vector<Lease> slots;
  for (std::size_t i = 0; i < std::min(batches, kReserveBytes / batch_bytes); ++i) {
    for (std::size_t bytes : layout.field_bytes) slots.push_back(pool_->acquire(bytes));
  }
}

void Engine::plan_pieces(BatchTask& task) const {
  const std::size_t samples = task.indices.size();
  for (std::size_t column = 0; column < row_bytes_.size(); ++column) {
    const std::int64_t row = std::max<std::int64_t>(1, row_bytes_[column]);
    const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, kPieceBytes / row));
    for (std::size_t first = 0; first < samples; first += most) {
      task.pieces.push_back({column, first, std::min(most, samples - first)});
    }
  }
}

// Lets every thread take pieces of a batch.
void Engine::publish(BatchTask& task) {
  MutexLock lock(mutex_);
  const auto later = std::find_if(open_.begin(), open_.end(), [&](const BatchTask* other) {
    return other->number > task.number;
  });
  open_.insert(later, &task);
  if (idle_workers_ > 0) work_changed_.notify_all();
  if (consumer_waits_) batch_done_.notify_one();  // it may help
}

void Engine::gather(Worker& worker, BatchTask& task, const Piece& piece) {
  const Column& column = table_->columns()[piece.column];
  if (!task.failed.load() && !stopping_.load()) {
    try {
      const std::span<const std::int64_t> indices(task.indices.data() + piece.first, piece.count);
      std::byte* out = task.slots[piece.column].data() +
                       piece.first * static_cast<std::size_t>(column.row_bytes);
      worker.gatherer.gather(column, indices, out, readahead_.reading(column));
    } catch (...) {
      if (!task.failed.exchange(true)) task.error = std::current_exception();
    }
  }
  readahead_.observe(worker.monitor, column.row_bytes * static_cast<std::int64_t>(piece.count));
  if (task.pieces_left.fetch_sub(1) == 1) complete(task);
}

// The last touch of a task by a worker.
void Engine::complete(BatchTask& task) {
  MutexLock lock(mutex_);
  task.done = true;
  if (consumer_waits_ && task.number == delivered_) batch_done_.notify_one();
}

}  // namespace fastload
