#include "engine/batch_maker.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace fastload {
namespace {

// A larger batch is cut into pieces of this size, which several threads gather; a smaller one is
// gathered by the thread that prepared it. Balances waking other threads, which costs as much as
// gathering a small batch, against the time that a large one takes one thread.
constexpr std::int64_t kPieceBytes = 4 << 20;
// Samples whose files are named while the pieces of their batch are not planned yet.
constexpr std::size_t kNamedSamples = 4;
// Batches in circulation besides those that the depth counts: the one in the user's hands, the one
// before it, and one more of each for a user who looks back.
constexpr std::int64_t kHeldBatches = 4;
// The first batch allocates at most this much ahead; more is allocated when it is needed. Balances
// page faults while an epoch runs against memory that a short one never uses.
constexpr std::size_t kReserveBytes = std::size_t{1} << 30;

bool is_random(const Delivery& delivery) {
  return delivery.images && delivery.images->plan->random();
}

}  // namespace

BatchMaker::BatchMaker(std::shared_ptr<const Table> table, std::shared_ptr<SlotPool> pool,
                       const EngineOptions& options, const std::atomic<bool>& stopping)
    : table_(std::move(table)),
      pool_(std::move(pool)),
      stopping_(stopping),
      deliveries_(deliveries_of(*table_, options)),
      depth_(options.depth),
      skips_damage_(options.on_error == OnError::kSkip),
      any_ragged_(std::ranges::any_of(deliveries_, &Delivery::ragged)),
      wants_draws_(options.wants_draws || std::ranges::any_of(deliveries_, is_random)),
      readahead_(*table_) {}

BatchMaker::~BatchMaker() {
  if (demand_bytes_.load() > 0) pool_->remove_demand(demand_bytes_.load());
}

bool BatchMaker::is_shared(const BatchTask& task) {
  return task.layout.total_bytes() > static_cast<std::size_t>(kPieceBytes);
}

void BatchMaker::prepare(Scratch& scratch, BatchTask& task) {
  std::vector<std::int64_t>* const draws = wants_draws_ ? &task.draws : nullptr;
  auto* const missing = skips_damage_ ? &task.missing : nullptr;
  table_->check_indices(task.indices);
  const auto named = static_cast<std::ptrdiff_t>(std::min(task.indices.size(), kNamedSamples));
  task.head.assign(task.indices.begin(), task.indices.begin() + named);
  task.stage.store(Stage::kChecking);
  scratch.check_.check_rows(task.indices, missing, draws);
  table_->mapped(task.indices, task.rows);
  task.stage.store(Stage::kLengths);
  read_spans(scratch, task);
  if (scratch.check_.check_values(task.indices, task.spans, missing, draws)) {
    table_->mapped(task.indices, task.rows);
    read_spans(scratch, task);
  }
  task.stage.store(Stage::kLayout);
  layout_batch(deliveries_, static_cast<std::int64_t>(task.indices.size()), task.spans,
               task.layout);
  reserve_slots(task.layout);
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
  readahead_.prepare(scratch.monitor_, scratch.gatherer_, task.samples(), task.spans);
  task.stage.store(Stage::kGathering);
}

// Reads the bounds of the ragged columns, on which the size of the batch depends.
void BatchMaker::read_spans(Scratch& scratch, BatchTask& task) {
  task.spans.resize(deliveries_.size());
  if (!any_ragged_) return;
  if (!task.indices.empty()) {
    readahead_.prepare_bounds(scratch.monitor_, scratch.gatherer_, task.samples());
  }
  for (std::size_t column = 0; column < deliveries_.size(); ++column) {
    if (!deliveries_[column].ragged) continue;
    scratch.gatherer_.read_spans(table_->columns()[column], task.samples(), task.spans[column],
                                 readahead_.reading());
  }
}

// Announces to the pool how much is in circulation, which a larger batch than before raises. The
// first batch allocates the slots of all, so that how many there are does not depend on timing.
void BatchMaker::reserve_slots(const BatchLayout& layout) {
  std::size_t batch_bytes = 0;
  for (std::size_t room : layout.slot_rooms) batch_bytes += SlotPool::capacity_for(room);
  const auto batches = static_cast<std::size_t>(depth_ + kHeldBatches);
  const std::size_t demand = batch_bytes * batches;
  std::size_t before = demand_bytes_.load(std::memory_order_relaxed);
  if (layout.total_bytes() == 0 || demand <= before) return;
  while (!demand_bytes_.compare_exchange_weak(before, demand)) {
    if (demand <= before) return;
  }
  pool_->add_demand(demand - before);
  if (before > 0) return;
  const SlotPoolStats pool = pool_->stats();
  if (pool.used_bytes + pool.free_bytes >= demand) return;  // from an earlier epoch
  std::vector<Lease> slots;
  for (std::size_t i = 0; i < std::min(batches, kReserveBytes / batch_bytes); ++i) {
    for (std::size_t room : layout.slot_rooms) slots.push_back(pool_->acquire(room));
  }
}

void BatchMaker::plan_pieces(BatchTask& task) const {
  const std::size_t samples = task.indices.size();
  if (samples == 0) return;
  const bool shared = is_shared(task);
  for (std::size_t column = 0; column < deliveries_.size(); ++column) {
    const Delivery& delivery = deliveries_[column];
    if (!shared) {
      task.pieces.push_back({column, 0, samples});
      continue;
    }
    if (delivery.ragged && !delivery.padded) {
      plan_ragged_pieces(task, column);
      continue;
    }
    const std::int64_t elements = delivery.padded ? task.layout.padded_lengths[column] : 1;
    const std::int64_t row = std::max<std::int64_t>(1, elements * delivery.row_bytes);
    const auto max_samples = static_cast<std::size_t>(std::max<std::int64_t>(1, kPieceBytes / row));
    for (std::size_t first = 0; first < samples; first += max_samples) {
      task.pieces.push_back({column, first, std::min(max_samples, samples - first)});
    }
  }
}

// Samples have different sizes: a piece ends with the sample that takes it beyond kPieceBytes.
void BatchMaker::plan_ragged_pieces(BatchTask& task, std::size_t column) const {
  const std::size_t samples = task.indices.size();
  const Spans spans = task.spans[column].spans();
  const std::int64_t row = std::max<std::int64_t>(1, deliveries_[column].row_bytes);
  const std::int64_t max_elements = kPieceBytes / row;
  std::size_t first = 0;
  for (std::size_t end = 1; end <= samples; ++end) {
    if (end < samples && spans.offsets[end] - spans.offsets[first] <= max_elements) continue;
    task.pieces.push_back({column, first, end - first});
    first = end;
  }
}

bool BatchMaker::gather(Scratch& scratch, BatchTask& task, Piece& piece) {
  std::int64_t bytes = 0;
  if (!task.failed.load() && !stopping_.load()) {
    try {
      bytes = gather_piece(scratch, task, piece);
    } catch (...) {
      if (!task.failed.exchange(true)) task.error = std::current_exception();
    }
  }
  readahead_.observe(scratch.monitor_, bytes);
  std::atomic_ref(piece.done).store(true);
  return task.pieces_left.fetch_sub(1) == 1;
}

// Returns the bytes of the piece.
std::int64_t BatchMaker::gather_piece(Scratch& scratch, BatchTask& task, const Piece& piece) const {
  const Column& column = table_->columns()[piece.column];
  const Delivery& delivery = deliveries_[piece.column];
  const IndexSpan indices = task.samples().subspan(piece.first, piece.count);
  std::byte* out = task.slots[delivery.slot].data();
  const auto first = static_cast<std::int64_t>(piece.first);
  if (!delivery.ragged) {
    out += first * delivery.row_bytes;
    if (delivery.images) {
      scratch.gatherer_.gather_images(column, indices, *delivery.images, out, readahead_.reading());
    } else {
      scratch.gatherer_.gather(column, indices, out, readahead_.reading());
    }
    return delivery.row_bytes * static_cast<std::int64_t>(piece.count);
  }
  const Spans all = task.spans[piece.column].spans();
  const Spans spans = all.part(piece.first, piece.count);
  if (!delivery.padded) {
    out += all.offsets[piece.first] * delivery.row_bytes;
    scratch.gatherer_.gather_ragged(column, indices, spans, nullptr, out, readahead_.reading());
  } else {
    const Padding padding{task.layout.padded_lengths[piece.column], delivery.padding.element};
    out += first * padding.length * delivery.row_bytes;
    scratch.gatherer_.gather_ragged(column, indices, spans, &padding, out, readahead_.reading());
  }
  return spans.total() * delivery.row_bytes;
}

}  // namespace fastload
