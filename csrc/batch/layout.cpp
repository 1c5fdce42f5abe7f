#include "batch/layout.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/bytes.h"
#include "batch/slot_pool.h"

namespace fastload {
namespace {

std::int64_t padded_length(const PadTo& padding, const Spans& spans) {
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < spans.count(); ++i) longest = std::max(longest, spans.length(i));
  const std::int64_t multiple = padding.multiple;
  return checked_mul(longest / multiple + (longest % multiple != 0 ? 1 : 0), multiple);
}

}  // namespace

std::size_t BatchLayout::total_bytes() const {
  return std::accumulate(slot_bytes.begin(), slot_bytes.end(), std::size_t{0});
}

void layout_batch(std::span<const Delivery> columns, std::int64_t samples,
                  std::span<const SpanTable> spans, BatchLayout& layout) {
  layout.slot_bytes.clear();
  layout.slot_rooms.clear();
  layout.padded_lengths.clear();
  const auto add = [&](std::int64_t rows, std::int64_t row_bytes, bool varies = false) {
    const auto bytes = static_cast<std::size_t>(checked_mul(rows, row_bytes));
    layout.slot_bytes.push_back(bytes);
    layout.slot_rooms.push_back(varies ? SlotPool::roomy(bytes) : bytes);
  };
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const Delivery& column = columns[c];
    std::int64_t length = 0;
    if (!column.ragged) {
      add(samples, column.row_bytes);
    } else if (!column.padded) {
      add(spans[c].spans().total(), column.row_bytes, true);
      add(samples + 1, sizeof(std::int64_t));
    } else {
      length = padded_length(column.padding, spans[c].spans());
      add(checked_mul(samples, length), column.row_bytes, true);
      add(samples, sizeof(std::int64_t));
    }
    layout.padded_lengths.push_back(length);
  }
}

void write_spans(const Delivery& column, const Spans& spans, std::byte* out) {
  if (!column.padded) {
    std::memcpy(out, spans.offsets.data(), spans.offsets.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < spans.count(); ++i) {
    const std::int64_t length = spans.length(i);
    std::memcpy(out + i * sizeof(length), &length, sizeof(length));
  }
}

}  // namespace fastload
