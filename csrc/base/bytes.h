// Arithmetic on sizes that throws on overflow, and poisoning of free memory for AddressSanitizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fastload {

// The alignment of the memory of every field: a multiple of cache lines (64 bytes) and of the
// memory transactions of GPUs, and what cudaMalloc guarantees.
inline constexpr std::size_t kFieldAlignment = 256;

inline std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) throw std::overflow_error("a size exceeds 2^63 bytes");
  return sum;
}

inline std::int64_t checked_mul(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw std::overflow_error("a size exceeds 2^63 bytes");
  }
  return product;
}

// REQUIRES: alignment is a power of two.
constexpr std::size_t align_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

// Under AddressSanitizer any access to [data, data + size) is reported until unpoison().
inline void poison([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(data, size);
#endif
}

inline void unpoison([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(data, size);
#endif
}

}  // namespace fastload
