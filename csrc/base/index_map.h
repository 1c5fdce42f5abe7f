// From the index of a sample to its row, where that is computed.
#pragma once

#include <cstdint>
#include <span>

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

}  // namespace fastload
