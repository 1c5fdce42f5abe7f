// The layout of rows in memory that are not one block of bytes, as in a transposed array.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fastload {

// An axis of a row: its items are `from` bytes apart in memory, and `to` bytes in a batch.
struct Axis {
  std::int64_t length;
  std::int64_t from;  // may be negative or 0
  std::int64_t to;
};

// The rows of one shard. Immutable.
struct RowStrides {
  std::int64_t row = 0;         // bytes from one row to the next; may be negative or 0
  std::int64_t item_bytes = 0;  // bytes that are contiguous in memory
  std::vector<Axis> axes = {};  // the last one is the innermost; empty: a row is one item
  // The lowest byte of a row and one past its highest, relative to its first item.
  std::int64_t low = 0;
  std::int64_t high = 0;

  // Makes the layout of rows of this shape, of items of `item_bytes` bytes. `strides`: bytes from
  // one row to the next, then of each axis of the shape. Axes that are dense together become one,
  // and the innermost dense ones one larger item. Throws std::invalid_argument unless there is a
  // stride for rows and each axis and lengths are not negative, std::overflow_error for a row that
  // is too large.
  static RowStrides of(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides,
                       std::int64_t item_bytes);
};

}  // namespace fastload
