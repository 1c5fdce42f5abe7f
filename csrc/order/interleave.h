// Merges sequences into one endless sequence that holds each in proportion everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fastload {

// What a position of the merged sequence is: item number `visit` of a source.
struct Visit {
  std::size_t source;
  std::int64_t visit;
};

// A balanced binary tree over the sources: at a node with share r = left / (left + right), visit n
// goes left iff floor((n + 1) r) > floor(n r), and is visit floor(n r) of the left or
// n - floor(n r) of the right. Computed in integers, without rounding. The visits of a source come
// in order, and any stretch of m positions holds fewer than ceil(log2(sources)) more or less of
// them than m * weight / total. A value; const methods may be called from any thread.
class Interleave {
 public:
  static constexpr std::int64_t kEnd = std::int64_t{1} << 62;  // positions are smaller

  // REQUIRES: no weight is negative; their sum lies in [1, kEnd].
  explicit Interleave(std::span<const std::int64_t> weights);

  std::size_t source_count() const { return sums_.size() - 1; }
  std::int64_t weight(std::size_t source) const { return sums_[source + 1] - sums_[source]; }
  // REQUIRES: 0 <= position < kEnd.
  Visit at(std::int64_t position) const;
  // Inverse of at(); kEnd if it is that or more. REQUIRES: 0 <= visit < kEnd, weight(source) > 0.
  std::int64_t position_of(std::size_t source, std::int64_t visit) const;
  // Visits of each source before a position. REQUIRES: 0 <= position <= kEnd;
  // out.size() == source_count().
  void visits_before(std::int64_t position, std::span<std::int64_t> out) const;

 private:
  std::vector<std::int64_t> sums_;  // of the weights before each source, then of all
};

}  // namespace fastload
