// Decisions that the kernels share: when to prefetch, and when to use streaming stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "batch/run.h"

// Sanitizers do not see streaming stores, so their builds take the portable kernels.
#if !defined(FASTLOAD_SANITIZE) && (defined(__x86_64__) || defined(__aarch64__))
#define FL_STREAM_KERNELS 1
#endif

namespace fastload {

// Rows from this size on are written by streaming stores, which do not read the lines they
// overwrite. Balances this against the lines at both ends of a row, which are written twice.
inline constexpr std::size_t kStreamBytes = 1024;
inline constexpr std::size_t kLine = 64;  // of a cache
// Rows that are prefetched before they are copied. Balances the latency of memory against the lines
// that a core can request at once and that the first cache holds.
inline constexpr std::size_t kRowsAhead = 16;

inline void prefetch_row(const std::byte* row, std::size_t row_bytes) {
  constexpr std::size_t kMaxBytes = 8 * kLine;  // the hardware prefetches the rest of a row
  const std::size_t bytes = row_bytes < kMaxBytes ? row_bytes : kMaxBytes;
  for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at);
  if (bytes > 0) __builtin_prefetch(row + bytes - 1);
}

inline std::size_t bytes_of(std::span<const Run> runs) {
  std::size_t bytes = 0;
  for (const Run& run : runs) bytes += run.bytes;
  return bytes;
}

// Returns how many runs ahead to prefetch. The hardware prefetches long runs, from 64 lines on, but
// misses the start of shorter ones.
inline std::size_t runs_ahead(std::span<const Run> runs) {
  return bytes_of(runs) < runs.size() * 64 * kLine ? kRowsAhead : 1;
}

inline bool streams_well(const std::byte* out, std::size_t bytes) {
  if (bytes < kStreamBytes) return false;
  const bool whole_lines = bytes % kLine == 0 && reinterpret_cast<std::uintptr_t>(out) % kLine == 0;
  return whole_lines || bytes >= 16 * kStreamBytes;  // else partial lines cost too much
}

}  // namespace fastload
