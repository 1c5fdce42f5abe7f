// How the items of a row lie in memory where they do not lie side by side, as in a transposed
// array.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fastload {

// One loop over the items of a row: in memory they are `from` bytes apart, in a batch `to` bytes.
struct Axis {
  std::int64_t length;
  std::int64_t from;  // may be negative or 0
  std::int64_t to;
};

// The rows of one shard. Immutable.
struct RowStrides {
  std::int64_t row = 0;         // bytes from one row to the next; may be negative or 0
  std::int64_t item_bytes = 0;  // bytes that lie side by side
  std::vector<Axis> axes = {};  // the innermost is the last one; none: a row is one item
  // Bytes of the source from the first item of a row to its lowest byte, and behind its highest.
  std::int64_t low = 0;
  std::int64_t high = 0;

  // How rows lie whose items of `item_bytes` bytes have this shape. `strides`: bytes from one row
  // to the next, then of each axis of the shape. Axes that are dense together become one, and the
  // innermost dense ones one larger item. Throws std::invalid_argument for numbers that do not fit
  // each other, std::overflow_error for a row that is too large.
  static RowStrides of(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides,
                       std::int64_t item_bytes);
};

}  // namespace fastload
