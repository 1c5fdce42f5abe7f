// The allocator of slots: an interface with two implementations, batch/host_memory.h and
// device/pinned_memory.h.
#pragma once

#include <cstddef>

namespace fastload {

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Returns at least `bytes` bytes, aligned to kFieldAlignment. Throws std::bad_alloc. Thread-safe.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  // Frees what allocate(bytes) returned. Thread-safe.
  virtual void release(std::byte* data, std::size_t bytes) noexcept = 0;
};

}  // namespace fastload
