// Ordinary memory for slots.
#pragma once

#include "base/memory_source.h"

namespace fastload {

// Large slots are anonymous mappings, in huge pages where the size allows: a gather writes to many
// pages at once. Small ones come from the heap.
// Thread-safe.
class HostMemory final : public MemorySource {
 public:
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* data, std::size_t bytes) noexcept override;
};

}  // namespace fastload
