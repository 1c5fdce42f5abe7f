// Copying rows whose items do not lie side by side.
#pragma once

#include <cstddef>
#include <span>

#include "storage/strides.h"

namespace fastload {

struct StridedRow {
  const std::byte* from;  // the first item
  std::byte* out;         // where the row goes, side by side
};

// Copies rows of one shard. REQUIRES: no row overlaps where another one goes. Thread-safe; touches
// nothing but the rows.
void copy_strided(std::span<const StridedRow> rows, const RowStrides& strides);

}  // namespace fastload
