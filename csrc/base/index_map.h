// From the index of a sample to its row, where that is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fastload {

// A function that is the same at every call. Thread-safe.
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

// Indices of samples, and beside them the rows that an index map has for them; without a map they
// are the same. Views of memory that outlives them.
class IndexSpan {
 public:
  IndexSpan(std::span<const std::int64_t> indices) : indices_(indices), rows_(indices) {}
  IndexSpan(const std::vector<std::int64_t>& indices) : IndexSpan(std::span(indices)) {}
  // REQUIRES: equal sizes.
  IndexSpan(std::span<const std::int64_t> indices, std::span<const std::int64_t> rows)
      : indices_(indices), rows_(rows) {}

  std::size_t size() const { return indices_.size(); }
  bool empty() const { return indices_.empty(); }
  std::int64_t operator[](std::size_t i) const { return indices_[i]; }
  std::span<const std::int64_t> indices() const { return indices_; }
  std::span<const std::int64_t> rows() const { return rows_; }
  IndexSpan subspan(std::size_t first, std::size_t count) const {
    return {indices_.subspan(first, count), rows_.subspan(first, count)};
  }

 private:
  std::span<const std::int64_t> indices_;
  std::span<const std::int64_t> rows_;
};

}  // namespace fastload
