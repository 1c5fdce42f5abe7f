// Where the memory of a slot comes from: the interface that host memory implements here and pinned
// memory in device/.
#pragma once

#include <cstddef>

namespace fastload {

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // At least `bytes` bytes, aligned to kFieldAlignment. Throws std::bad_alloc. Thread-safe.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  // Takes back what allocate(bytes) gave. Thread-safe.
  virtual void release(std::byte* data, std::size_t bytes) noexcept = 0;
};

}  // namespace fastload
