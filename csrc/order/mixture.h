// A mixture of datasets in given proportions: index -> source and its sample, in O(log sources).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/index_map.h"
#include "order/interleave.h"

namespace fastload {

// Where an epoch ends.
enum class Exhausted {
  kStop,    // where a source would repeat
  kRepeat,  // when each source was read once
  kDrop,    // when all samples came once: sources leave at their end, the others continue
};

struct MixtureSpec {
  std::vector<std::int64_t> sizes;    // samples of each source
  std::vector<std::int64_t> weights;  // a source of weight 0 is never read
  Exhausted exhausted = Exhausted::kStop;
  std::optional<std::int64_t> samples;  // of an epoch, instead of the number that kStop gives
  std::optional<std::uint64_t> seed;    // permutes each repetition of a source; none: in order
};

// Index i is position i of an endless Interleave of the sources; epoch e has the indices
// [e * size(), (e + 1) * size()). Visit v of a source of n samples is position v mod n of its
// repetition v / n, and each repetition is a permutation of its own. With kDrop an epoch is a list
// of phases, each with the sources that are left, and the repetition is the epoch. Values never
// change between versions, since checkpoints depend on them. A value; const methods may be called
// from any thread.
class Mixture final : public IndexMap {
 public:
  // Throws std::invalid_argument unless sizes are positive, weights are not negative, and each sums
  // up to something in [1, 2^62]; if an epoch would have no or more than 2^62 samples; if the
  // phases would take too much memory; or for kDrop with a number of samples.
  explicit Mixture(MixtureSpec spec);

  std::int64_t size() const { return size_; }  // samples of an epoch
  std::int64_t index_limit() const override { return Interleave::kEnd; }
  std::int64_t row_limit() const override { return starts_.back(); }
  // A row is the number of a sample when the sources are concatenated.
  void rows(std::span<const std::int64_t> indices, std::span<std::int64_t> rows) const override;
  // REQUIRES: every index lies in [0, index_limit()); the sizes are equal.
  void locate(std::span<const std::int64_t> indices, std::span<std::int64_t> sources,
              std::span<std::int64_t> samples) const;
  // Samples of each source in an epoch. REQUIRES: 0 <= epoch < index_limit() / size().
  std::vector<std::int64_t> counts(std::int64_t epoch) const;

 private:
  struct Phase {
    std::int64_t begin;  // position in the epoch
    Interleave order;
    std::vector<std::int64_t> visited;  // visits of each source before this phase
  };
  struct Place {
    std::size_t source;
    std::int64_t sample;
  };

  bool drops() const { return spec_.exhausted == Exhausted::kDrop; }
  void plan_phases();
  std::int64_t planned_size() const;
  Place place_of(std::int64_t index) const;

  MixtureSpec spec_;
  std::vector<std::int64_t> starts_;  // first row of each source, then their sum
  std::vector<Phase> phases_;         // one endless phase, except with kDrop
  std::int64_t size_ = 0;
};

}  // namespace fastload
