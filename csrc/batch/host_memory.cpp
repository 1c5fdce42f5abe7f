#include "batch/host_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#include "base/bytes.h"

namespace fastload {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kHeapBytes = 64 << 10;

}  // namespace

std::byte* HostMemory::allocate(std::size_t bytes) {
  if (bytes < kHeapBytes) {
    void* data = std::aligned_alloc(kFieldAlignment, align_up(bytes, kFieldAlignment));
    if (data == nullptr) throw std::bad_alloc();
    return static_cast<std::byte*>(data);
  }
  const std::size_t size = align_up(bytes, kPage);
  const bool huge = size >= 2 * kHugePage;
  const std::size_t mapped = size + (huge ? kHugePage : 0);
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  auto* data = static_cast<std::byte*>(start);
  if (!huge) return data;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::size_t head = align_up(address, kHugePage) - address;
  const std::size_t tail = kHugePage - head;
  if (head > 0) munmap(data, head);
  if (tail > 0) munmap(data + head + size, tail);
  madvise(data + head, size, MADV_HUGEPAGE);
  return data + head;
}

void HostMemory::release(std::byte* data, std::size_t bytes) noexcept {
  if (bytes < kHeapBytes) return std::free(data);
  munmap(data, align_up(bytes, kPage));
}

}  // namespace fastload
