// How large each field of a batch is: computed per batch, before any memory is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fastload {

// The sizes of one batch. Every field has a slot of its own, so that keeping a field keeps only its
// own bytes, and no two fields share a cache line or a transaction of a copy engine.
struct BatchLayout {
  std::vector<std::size_t> field_bytes;

  std::size_t total_bytes() const;
};

// Sets `layout` to that of `samples` samples whose fields have the given sizes. REQUIRES: nothing
// negative. Throws std::overflow_error.
void layout_batch(std::span<const std::int64_t> row_bytes, std::int64_t samples,
                  BatchLayout& layout);

}  // namespace fastload
