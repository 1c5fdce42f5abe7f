// Samples of a batch: their indices, rows and RNG keys; and maps from indices to rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fastload {

// A pure function from indices to rows. Thread-safe.
class IndexMap {
 public:
  virtual ~IndexMap() = default;
  // Indices lie in [0, index_limit()), rows in [0, row_limit()).
  virtual std::int64_t index_limit() const = 0;
  virtual std::int64_t row_limit() const = 0;
  // REQUIRES: every index lies in [0, index_limit()); rows.size() == indices.size(). They may be
  // the same memory.
  virtual void rows(std::span<const std::int64_t> indices, std::span<std::int64_t> rows) const = 0;
};

// Samples, as three numbers each: the index, which names the sample; the row where it is read,
// which differs if there is an index map; and the draw, the sample's part of the RNG key of random
// transforms, which differs where an index is repeated in an epoch. Rows and draws default to the
// indices. A view of memory that outlives it.
class IndexSpan {
 public:
  IndexSpan(std::span<const std::int64_t> indices) : IndexSpan(indices, indices) {}
  IndexSpan(const std::vector<std::int64_t>& indices) : IndexSpan(std::span(indices)) {}
  // REQUIRES: equal sizes, here and below.
  IndexSpan(std::span<const std::int64_t> indices, std::span<const std::int64_t> rows)
      : IndexSpan(indices, rows, indices) {}
  IndexSpan(std::span<const std::int64_t> indices, std::span<const std::int64_t> rows,
            std::span<const std::int64_t> draws)
      : indices_(indices), rows_(rows), draws_(draws) {}

  std::size_t size() const { return indices_.size(); }
  bool empty() const { return indices_.empty(); }
  std::int64_t operator[](std::size_t i) const { return indices_[i]; }
  std::span<const std::int64_t> indices() const { return indices_; }
  std::span<const std::int64_t> rows() const { return rows_; }
  std::span<const std::int64_t> draws() const { return draws_; }
  IndexSpan subspan(std::size_t first, std::size_t count) const {
    return {indices_.subspan(first, count), rows_.subspan(first, count),
            draws_.subspan(first, count)};
  }

 private:
  std::span<const std::int64_t> indices_;
  std::span<const std::int64_t> rows_;
  std::span<const std::int64_t> draws_;
};

}  // namespace fastload
