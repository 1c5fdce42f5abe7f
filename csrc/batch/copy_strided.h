// Copies rows whose items are not contiguous.
#pragma once

#include <cstddef>
#include <span>

#include "storage/strides.h"

namespace fastload {

struct StridedRow {
  const std::byte* from;  // the first item
  std::byte* out;         // where the row goes, contiguous
};

// Copies rows of one shard. REQUIRES: the sources do not overlap the destinations. Thread-safe.
void copy_strided(std::span<const StridedRow> rows, const RowStrides& strides);

}  // namespace fastload
