// The samples of a ragged column that a batch holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fastload {

// Where each sample starts in the values of its shard, and its offset in the batch, in elements.
// All spans lie inside the values. A view of memory that outlives it.
struct Spans {
  std::span<const std::int64_t> begins;   // one per sample
  std::span<const std::int64_t> offsets;  // samples + 1: the elements before each sample, then all

  std::size_t count() const { return begins.size(); }
  std::int64_t length(std::size_t i) const { return offsets[i + 1] - offsets[i]; }
  std::int64_t total() const { return offsets.back() - offsets.front(); }
  Spans part(std::size_t first, std::size_t samples) const {
    return {begins.subspan(first, samples), offsets.subspan(first, samples + 1)};
  }
};

// The memory of Spans, which is reused from batch to batch.
struct SpanTable {
  std::vector<std::int64_t> begins;
  std::vector<std::int64_t> offsets;

  Spans spans() const { return {begins, offsets}; }
};

// Makes the samples of a ragged column equally long.
struct Padding {
  std::int64_t length;                 // of each sample with its padding, in elements
  std::span<const std::byte> element;  // what follows the elements of a shorter sample
};

}  // namespace fastload
