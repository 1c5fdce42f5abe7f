#include "order/epoch_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/hash.h"

namespace fastload {
namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

void require(bool holds, const char* rule, std::int64_t value) {
  if (!holds) {
    throw std::invalid_argument(std::string("epoch plan: ") + rule + ", got " +
                                std::to_string(value));
  }
}

}  // namespace

EpochPlan::EpochPlan(const EpochSpec& spec) : spec_(spec) {
  const EpochSpec& s = spec_;
  require(s.rows >= 0 && s.rows <= Permutation::kMaxSize, "rows must lie in [0, 2^62]", s.rows);
  require(s.batch >= 1 && s.batch <= (std::int64_t{1} << 31), "batch must lie in [1, 2^31]",
          s.batch);
  require(s.world >= 1 && s.world <= (std::int64_t{1} << 24), "world must lie in [1, 2^24]",
          s.world);
  require(s.rank >= 0 && s.rank < s.world, "rank must lie in [0, world)", s.rank);
  require(s.first_position >= 0 && s.first_position <= s.rows,
          "first_position must lie in [0, rows]", s.first_position);
  require(s.index_offset >= 0 && s.index_offset <= Permutation::kMaxSize - s.rows,
          "index_offset must lie in [0, 2^62 - rows]", s.index_offset);
  const std::int64_t global_batch = s.batch * s.world;
  const std::int64_t rest = s.rows - s.first_position;
  batch_count_ = rest / global_batch;
  const std::int64_t left = rest % global_batch;
  if (s.tail == Tail::kPad ? left > 0 : s.tail == Tail::kShort && s.rank < left) ++batch_count_;
  if (s.order == OrderKind::kWeighted && !s.weights) {
    throw std::invalid_argument("epoch plan: order is weighted, but there are no weights");
  }
  if (s.rows == 0 || s.order == OrderKind::kSequential || s.order == OrderKind::kWeighted) return;
  if (s.order == OrderKind::kFull) {
    permutation_.emplace(s.rows, hash_key(s.seed, s.epoch, 0));
    return;
  }
  require(s.block_rows >= 1, "block_rows must be positive", s.block_rows);
  require(s.window_blocks >= 1, "window_blocks must be positive", s.window_blocks);
  spec_.block_rows = std::min(s.block_rows, s.rows);
  block_count_ = ceil_div(s.rows, s.block_rows);
  spec_.window_blocks = std::min(s.window_blocks, block_count_);
  permutation_.emplace(block_count_, hash_key(s.seed, s.epoch, 0));
  short_slot_ = permutation_->position_of(block_count_ - 1);
}

EpochPlan::Span EpochPlan::positions(std::int64_t k) const {
  const std::int64_t global_batch = spec_.batch * spec_.world;
  const std::int64_t start = spec_.first_position + k * global_batch;
  const std::int64_t rest = spec_.rows - start;
  if (rest >= global_batch) return {start + spec_.rank * spec_.batch, spec_.batch};
  const std::int64_t share = ceil_div(rest, spec_.world);
  if (spec_.tail == Tail::kPad) return {start + spec_.rank * share, share};
  const std::int64_t base = rest / spec_.world;
  const std::int64_t longer = rest % spec_.world;  // the first ranks hold one sample more
  return {start + spec_.rank * base + std::min(spec_.rank, longer),
          base + (spec_.rank < longer ? 1 : 0)};
}

std::int64_t EpochPlan::batch_size(std::int64_t k) const { return positions(k).count; }

std::int64_t EpochPlan::real_count(std::int64_t k) const {
  const Span span = positions(k);
  return std::clamp<std::int64_t>(spec_.rows - span.first, 0, span.count);
}

void EpochPlan::indices(std::int64_t k, std::vector<std::int64_t>& out) const {
  const Span span = positions(k);
  out.resize(static_cast<std::size_t>(span.count));
  std::int64_t done = 0;
  while (done < span.count) {  // more than one turn only where a padded tail wraps
    const std::int64_t first = (span.first + done) % spec_.rows;
    const std::int64_t count = std::min(span.count - done, spec_.rows - first);
    index_run(first, {out.data() + done, static_cast<std::size_t>(count)});
    done += count;
  }
  if (spec_.index_offset == 0) return;
  for (std::int64_t& index : out) index += spec_.index_offset;
}

void EpochPlan::draws(std::int64_t k, std::vector<std::int64_t>& out) const {
  out.clear();
  if (spec_.order != OrderKind::kWeighted) return;
  const Span span = positions(k);
  for (std::int64_t i = 0; i < span.count; ++i) out.push_back((span.first + i) % spec_.rows);
}

void EpochPlan::index_run(std::int64_t first, std::span<std::int64_t> out) const {
  if (spec_.order == OrderKind::kSequential) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = first + static_cast<std::int64_t>(i);
  } else if (spec_.order == OrderKind::kFull) {
    permutation_->indices_from(first, out);
  } else if (spec_.order == OrderKind::kWeighted) {
    spec_.weights->indices_from(hash_key(spec_.seed, spec_.epoch, 0),
                                static_cast<std::uint64_t>(first), out);
  } else {
    index_run_in_blocks(first, out);
  }
}

// First position of the block in permuted place `slot`.
std::int64_t EpochPlan::block_start(std::int64_t slot) const {
  const std::int64_t missing = block_count_ * spec_.block_rows - spec_.rows;
  return slot * spec_.block_rows - (slot > short_slot_ ? missing : 0);
}

void EpochPlan::index_run_in_blocks(std::int64_t first, std::span<std::int64_t> out) const {
  const std::int64_t window_blocks = spec_.window_blocks;
  // The short block may start this position's window earlier than full blocks would.
  std::int64_t window = first / (window_blocks * spec_.block_rows);
  const auto window_start = [&](std::int64_t w) {
    return block_start(std::min(w * window_blocks, block_count_));
  };
  if (window_start(window + 1) <= first) ++window;
  std::size_t done = 0;
  while (done < out.size()) {
    const std::int64_t start = window_start(window);
    const std::int64_t end = window_start(window + 1);
    const Permutation inner(
        end - start, hash_key(spec_.seed, spec_.epoch, static_cast<std::uint64_t>(window) + 1));
    std::int64_t at = first + static_cast<std::int64_t>(done);
    for (; done < out.size() && at < end; ++done, ++at) {
      const std::int64_t position = start + inner.index_at(at - start);
      std::int64_t slot = position / spec_.block_rows;
      if (slot + 1 < block_count_ && block_start(slot + 1) <= position) ++slot;
      const std::int64_t block = permutation_->index_at(slot);
      out[done] = block * spec_.block_rows + (position - block_start(slot));
    }
    ++window;
  }
}

}  // namespace fastload
