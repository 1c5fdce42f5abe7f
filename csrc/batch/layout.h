// How large each array of a batch is: computed per batch, before any memory is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "batch/pixels.h"
#include "batch/spans.h"

namespace fastload {

// Makes the samples of a ragged column equally long: as long as the longest of the batch, rounded
// up to a multiple.
struct PadTo {
  std::int64_t multiple = 1;
  std::vector<std::byte> element;  // what fills a shorter sample
};

// How a column is delivered: a fixed one in one array; a ragged one in two, its values and an int64
// array of their offsets (samples + 1, from 0), or with padding of their lengths (samples).
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
  std::vector<std::size_t> slot_rooms;       // to ask for: more where sizes vary
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
