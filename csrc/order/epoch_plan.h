// The samples of batch k of an epoch on one rank, as a pure function of a few integers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "order/permutation.h"
#include "order/weighted.h"

namespace fastload {

// How samples after the last full global batch are handled.
enum class Tail {
  kDrop,   // not delivered
  kPad,    // delivered; positions past the end wrap to the start until all ranks have equally many
  kShort,  // delivered; ranks differ by at most one sample; a rank without any has no such batch
};

enum class OrderKind {
  kSequential,  // index = position
  kFull,        // one permutation of everything
  kWeighted,    // random by weight, independently for each position
  kBlock,  // permuted blocks, then a permutation inside windows of a few blocks: reads stay local
};

struct EpochSpec {
  std::int64_t rows = 0;
  std::int64_t batch = 1;  // samples of one rank's batch
  std::int64_t rank = 0;
  std::int64_t world = 1;
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::int64_t first_position = 0;  // where batch 0 starts: anywhere in [0, rows]
  Tail tail = Tail::kShort;
  OrderKind order = OrderKind::kFull;
  std::int64_t block_rows = 0;                 // kBlock only
  std::int64_t window_blocks = 0;              // kBlock only
  std::shared_ptr<const WeightTable> weights;  // kWeighted only
  std::int64_t index_offset = 0;               // added to each index
};

// Global batch k covers positions [first + k G, first + (k + 1) G), G = batch * world, and rank r
// the r-th contiguous part of it. A value; const methods may be called from any thread.
class EpochPlan {
 public:
  // Throws std::invalid_argument naming the field.
  explicit EpochPlan(const EpochSpec& spec);

  const EpochSpec& spec() const { return spec_; }
  std::int64_t batch_count() const { return batch_count_; }
  // Samples in this rank's batch k. REQUIRES: 0 <= k < batch_count().
  std::int64_t batch_size(std::int64_t k) const;
  // How many of these samples, the first ones, are not padding (kPad). REQUIRES: as batch_size().
  std::int64_t real_count(std::int64_t k) const;
  // Sets `out` to the dataset indices of batch k, in O(batch). REQUIRES: 0 <= k < batch_count().
  void indices(std::int64_t k, std::vector<std::int64_t>& out) const;
  // Sets `out` to the draws of these samples (IndexSpan); empty if they are the indices. In a
  // weighted order, where indices repeat, they are the positions. Padding has the draw of the
  // sample that it repeats. REQUIRES: as batch_size().
  void draws(std::int64_t k, std::vector<std::int64_t>& out) const;

 private:
  struct Span {
    std::int64_t first;
    std::int64_t count;
  };
  Span positions(std::int64_t k) const;
  void index_run(std::int64_t first, std::span<std::int64_t> out) const;
  void index_run_in_blocks(std::int64_t first, std::span<std::int64_t> out) const;
  std::int64_t block_start(std::int64_t slot) const;

  EpochSpec spec_;
  std::int64_t batch_count_ = 0;
  std::optional<Permutation> permutation_;  // of rows, or of blocks; none when sequential or empty
  std::int64_t block_count_ = 0;
  std::int64_t short_slot_ = 0;  // permuted place of the last block, which may be short
};

}  // namespace fastload
