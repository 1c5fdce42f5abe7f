// The sizes of the arrays of a batch, computed before its memory is acquired.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "batch/pixels.h"
#include "batch/spans.h"

namespace fastload {

// Padding of a ragged column: samples become as long as the longest of the batch, rounded up to a
// multiple.
struct PadTo {
  std::int64_t multiple = 1;
  std::vector<std::byte> element;  // the value of the padding
};

// How a column is delivered. A fixed column is one array. A ragged one is two: its values, and
// int64 offsets (samples + 1, from 0), or lengths (samples) if it is padded.
struct Delivery {
  std::int64_t row_bytes;  // of a sample; of an element if ragged
  bool ragged = false;
  bool padded = false;
  PadTo padding = {};  // if padded
  std::optional<ImageDelivery> images = std::nullopt;
  std::size_t slot = 0;  // of its first array in the batch
};

// The sizes of one batch. Every array has a slot of its own, so that keeping a field keeps only its
// own bytes, and no two fields share a cache line or a transaction of a copy engine.
struct BatchLayout {
  std::vector<std::size_t> slot_bytes;
  std::vector<std::size_t> slot_rooms;       // sizes to acquire: larger where sizes vary
  std::vector<std::int64_t> padded_lengths;  // per column: elements of each sample, or 0

  std::size_t total_bytes() const;
};

// Sets `layout` to that of `samples` samples. `spans`: one per column, read for the ragged ones.
// REQUIRES: nothing negative. Throws std::overflow_error.
void layout_batch(std::span<const Delivery> columns, std::int64_t samples,
                  std::span<const SpanTable> spans, BatchLayout& layout);

// Fills the second array of a ragged column.
void write_spans(const Delivery& column, const Spans& spans, std::byte* out);

}  // namespace fastload
