#include "batch/layout.h"

#include <numeric>

#include "base/bytes.h"

namespace fastload {

std::size_t BatchLayout::total_bytes() const {
  return std::accumulate(field_bytes.begin(), field_bytes.end(), std::size_t{0});
}

void layout_batch(std::span<const std::int64_t> row_bytes, std::int64_t samples,
                  BatchLayout& layout) {
  layout.field_bytes.clear();
  for (std::int64_t row : row_bytes) {
    layout.field_bytes.push_back(static_cast<std::size_t>(checked_mul(row, samples)));
  }
}

}  // namespace fastload
