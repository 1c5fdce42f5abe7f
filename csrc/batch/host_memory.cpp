#include "batch/host_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#include "base/bytes.h"
#include "base/pages.h"

namespace fastload {
namespace {

// Smaller slots come from the heap. Balances a system call for each of them against free memory
// that the heap keeps.
constexpr std::size_t kHeapBytes = 64 << 10;

}  // namespace

std::byte* HostMemory::allocate(std::size_t bytes) {
  if (bytes < kHeapBytes) {
    void* data = std::aligned_alloc(kFieldAlignment, align_up(bytes, kFieldAlignment));
    if (data == nullptr) throw std::bad_alloc();
    return static_cast<std::byte*>(data);
  }
  const std::size_t size = align_up(bytes, kPageBytes);
  const bool huge = size >= 2 * kHugePageBytes;
  const std::size_t mapped = size + (huge ? kHugePageBytes : 0);
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  auto* data = static_cast<std::byte*>(start);
  if (!huge) return data;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::size_t head = align_up(address, kHugePageBytes) - address;
  const std::size_t tail = kHugePageBytes - head;
  if (head > 0) munmap(data, head);
  if (tail > 0) munmap(data + head + size, tail);
  madvise(data + head, size, MADV_HUGEPAGE);
  return data + head;
}

void HostMemory::release(std::byte* data, std::size_t bytes) noexcept {
  if (bytes < kHeapBytes) return std::free(data);
  munmap(data, align_up(bytes, kPageBytes));
}

}  // namespace fastload
