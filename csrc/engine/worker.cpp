// What a thread of the engine does: claim the most urgent thing, do it, look again.
#include "engine/worker.h"

#include <algorithm>

namespace fastload {
namespace {

using Clock = std::chrono::steady_clock;

// Batches up to this size are gathered by the thread that begins them; larger ones in pieces of it.
constexpr std::int64_t kPieceBytes = 4 << 20;
// Samples of a batch whose files are named while its pieces are not planned yet.
constexpr std::size_t kNamedSamples = 4;
// Besides the batches that fill or are ready: one in the user's hands, the one before it, and one
// more of each for a user who looks back.
constexpr std::int64_t kHeldBatches = 4;
// So much is allocated when a run starts; more comes as it is needed.
constexpr std::size_t kReserveBytes = std::size_t{1} << 30;

// Whether a batch is cut into pieces; else each of its fields is one.
bool is_shared(const BatchTask& task) {
  return task.layout.total_bytes() > static_cast<std::size_t>(kPieceBytes);
}

}  // namespace

void Engine::run(Worker& worker) {
  mutex_.lock();
  while (!stopping_.load()) {
    const Claim claimed = may_work() ? claim() : Claim{};
    if (claimed.task == nullptr) {
      const Clock::time_point start = Clock::now();
      ++idle_workers_;
      work_changed_.wait(mutex_);
      --idle_workers_;
      stats_->add_worker_wait((Clock::now() - start).count());
      continue;
    }
    mutex_.unlock();
    work_on(worker, claimed);
    mutex_.lock();
  }
  mutex_.unlock();
}

// Without workers of its own a run reads nothing ahead.
bool Engine::may_work() const {
  return !on_demand_ || (consumer_seated_ && (tasks_.empty() || !tasks_.front()->done));
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
  if (task.pieces.empty()) {
    complete(task);
  } else if (is_shared(task) || readahead_.cold()) {
    publish(task);
  } else {
    // Each field is one piece. The last one completes the task, which may then be gone.
    const std::size_t count = task.pieces.size();
    for (std::size_t i = 0; i < count; ++i) gather(worker, task, task.pieces[i]);
  }
}

// From indices to empty slots.
void Engine::begin(Worker& worker, BatchTask& task) {
  std::vector<std::int64_t>* const draws = draws_ ? &task.draws : nullptr;
  order_->take(task.number, task.indices, draws);
  table_->check_indices(task.indices);
  const auto named = static_cast<std::ptrdiff_t>(std::min(task.indices.size(), kNamedSamples));
  task.head.assign(task.indices.begin(), task.indices.begin() + named);
  task.stage.store(Stage::checking);
  auto* missing = options_.on_error == OnError::skip ? &task.missing : nullptr;
  worker.check.check_rows(task.indices, missing, draws);
  table_->mapped(task.indices, task.rows);
  task.stage.store(Stage::lengths);
  read_spans(worker, task);
  if (worker.check.check_values(task.indices, task.spans, missing, draws)) {
    table_->mapped(task.indices, task.rows);
    read_spans(worker, task);
  }
  task.stage.store(Stage::layout);
  layout_batch(deliveries_, static_cast<std::int64_t>(task.indices.size()), task.spans,
               task.layout);
  announce(task.layout);
  const BatchLayout& layout = task.layout;
  for (std::size_t slot = 0; slot < layout.slot_bytes.size(); ++slot) {
    task.slots.push_back(pool_->acquire(layout.slot_bytes[slot], layout.slot_rooms[slot]));
  }
  for (std::size_t column = 0; any_ragged_ && column < deliveries_.size(); ++column) {
    const Delivery& delivery = deliveries_[column];
    if (!delivery.ragged) continue;
    write_spans(delivery, task.spans[column].spans(), task.slots[delivery.slot + 1].data());
  }
  plan_pieces(task);
  task.pieces_left.store(task.pieces.size());
  if (task.indices.empty()) return;
  readahead_.prepare(worker.monitor, worker.gatherer, task.samples(), task.spans);
  task.stage.store(Stage::gathering);
}

// Of the ragged columns: how large the batch is depends on them.
void Engine::read_spans(Worker& worker, BatchTask& task) {
  task.spans.resize(deliveries_.size());
  if (!any_ragged_) return;
  if (!task.indices.empty()) {
    readahead_.prepare_bounds(worker.monitor, worker.gatherer, task.samples());
  }
  for (std::size_t column = 0; column < deliveries_.size(); ++column) {
    if (!deliveries_[column].ragged) continue;
    worker.gatherer.read_spans(table_->columns()[column], task.samples(), task.spans[column],
                               readahead_.reading());
  }
}

// Tells the pool how much is in circulation, which a larger batch than before raises. What the
// first one needs is allocated at once rather than when timing first asks for it.
void Engine::announce(const BatchLayout& layout) {
  std::size_t batch_bytes = 0;
  for (std::size_t room : layout.slot_rooms) batch_bytes += SlotPool::capacity_for(room);
  const auto batches = static_cast<std::size_t>(options_.depth + kHeldBatches);
  const std::size_t demand = batch_bytes * batches;
  std::size_t before = demand_bytes_.load(std::memory_order_relaxed);
  if (layout.total_bytes() == 0 || demand <= before) return;
  while (!demand_bytes_.compare_exchange_weak(before, demand)) {
    if (demand <= before) return;
  }
  pool_->add_demand(demand - before);
  if (before > 0) return;
  const SlotPoolStats pool = pool_->stats();
  if (pool.used_bytes + pool.free_bytes >= demand) return;  // of an earlier epoch
  std::vector<Lease> slots;
  for (std::size_t i = 0; i < std::min(batches, kReserveBytes / batch_bytes); ++i) {
    for (std::size_t room : layout.slot_rooms) slots.push_back(pool_->acquire(room));
  }
}

void Engine::plan_pieces(BatchTask& task) const {
  const std::size_t samples = task.indices.size();
  if (samples == 0) return;
  const bool whole = !is_shared(task);
  for (std::size_t column = 0; column < deliveries_.size(); ++column) {
    const Delivery& delivery = deliveries_[column];
    if (whole) {
      task.pieces.push_back({column, 0, samples});
      continue;
    }
    if (delivery.ragged && !delivery.padded) {
      plan_ragged_pieces(task, column);
      continue;
    }
    const std::int64_t elements = delivery.padded ? task.layout.padded_lengths[column] : 1;
    const std::int64_t row = std::max<std::int64_t>(1, elements * delivery.row_bytes);
    const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, kPieceBytes / row));
    for (std::size_t first = 0; first < samples; first += most) {
      task.pieces.push_back({column, first, std::min(most, samples - first)});
    }
  }
}

// Samples of different sizes: a piece ends with the sample that makes it full.
void Engine::plan_ragged_pieces(BatchTask& task, std::size_t column) const {
  const std::size_t samples = task.indices.size();
  const Spans spans = task.spans[column].spans();
  const std::int64_t most = kPieceBytes / std::max<std::int64_t>(1, deliveries_[column].row_bytes);
  std::size_t first = 0;
  for (std::size_t end = 1; end <= samples; ++end) {
    if (end < samples && spans.offsets[end] - spans.offsets[first] <= most) continue;
    task.pieces.push_back({column, first, end - first});
    first = end;
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

void Engine::gather(Worker& worker, BatchTask& task, Piece& piece) {
  std::int64_t bytes = 0;
  if (!task.failed.load() && !stopping_.load()) {
    try {
      bytes = gather_piece(worker, task, piece);
    } catch (...) {
      if (!task.failed.exchange(true)) task.error = std::current_exception();
    }
  }
  readahead_.observe(worker.monitor, bytes);
  std::atomic_ref(piece.done).store(true);
  if (task.pieces_left.fetch_sub(1) == 1) complete(task);
}

// Returns the bytes of the piece.
std::int64_t Engine::gather_piece(Worker& worker, BatchTask& task, const Piece& piece) const {
  const Column& column = table_->columns()[piece.column];
  const Delivery& delivery = deliveries_[piece.column];
  const IndexSpan indices = task.samples().subspan(piece.first, piece.count);
  std::byte* out = task.slots[delivery.slot].data();
  const auto first = static_cast<std::int64_t>(piece.first);
  if (!delivery.ragged) {
    out += first * delivery.row_bytes;
    if (delivery.images) {
      worker.gatherer.gather_images(column, indices, *delivery.images, out, readahead_.reading());
    } else {
      worker.gatherer.gather(column, indices, out, readahead_.reading());
    }
    return delivery.row_bytes * static_cast<std::int64_t>(piece.count);
  }
  const Spans all = task.spans[piece.column].spans();
  const Spans spans = all.part(piece.first, piece.count);
  if (!delivery.padded) {
    out += all.offsets[piece.first] * delivery.row_bytes;
    worker.gatherer.gather_ragged(column, indices, spans, nullptr, out, readahead_.reading());
  } else {
    const Padding padding{task.layout.padded_lengths[piece.column], delivery.padding.element};
    out += first * padding.length * delivery.row_bytes;
    worker.gatherer.gather_ragged(column, indices, spans, &padding, out, readahead_.reading());
  }
  return spans.total() * delivery.row_bytes;
}

// The last touch of a task by a worker.
void Engine::complete(BatchTask& task) {
  MutexLock lock(mutex_);
  task.done = true;
  stats_->add_ready(1);
  if (consumer_waits_ && task.number == delivered_) batch_done_.notify_one();
}

}  // namespace fastload
