#include "batch/copy.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/inline.h"
#include "batch/convert.h"
#include "batch/stream.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastload {
namespace {

// Rows of at most one line. The CPU itself runs ahead of a loop as short as this one: prefetching
// made a loop that only copies 256 rows of 64 bytes 10 % slower.
template <std::size_t kBytes>
void copy_fixed(std::byte* out, const std::byte* const* rows, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i, out += kBytes) std::memcpy(out, rows[i], kBytes);
}

// Rows too small for streaming: the cost is waiting for the first line of each, so it is
// prefetched.
void copy_small_rows(std::byte* out, const std::byte* const* rows, std::size_t count,
                     std::size_t row_bytes) {
  switch (row_bytes) {
    case 0:
      return;
    case 1:
      return copy_fixed<1>(out, rows, count);
    case 2:
      return copy_fixed<2>(out, rows, count);
    case 4:
      return copy_fixed<4>(out, rows, count);
    case 8:
      return copy_fixed<8>(out, rows, count);
    case 16:
      return copy_fixed<16>(out, rows, count);
    case 32:
      return copy_fixed<32>(out, rows, count);
    case 64:
      return copy_fixed<64>(out, rows, count);
    default:
      break;
  }
  for (std::size_t i = 0; i < count; ++i, out += row_bytes) {
    if (i + kRowsAhead < count) prefetch_row(rows[i + kRowsAhead], row_bytes);
    std::memcpy(out, rows[i], row_bytes);
  }
}

void copy_rows_portable(std::byte* out, const std::byte* const* rows, std::size_t count,
                        std::size_t row_bytes) {
  copy_small_rows(out, rows, count, row_bytes);
}

void copy_runs_portable(std::span<const Run> runs) {
  const std::size_t ahead = runs_ahead(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i + ahead < runs.size()) prefetch_row(runs[i + ahead].from, runs[i + ahead].bytes);
    std::memcpy(runs[i].out, runs[i].from, runs[i].bytes);
  }
}

#if defined(FL_STREAM_KERNELS)

// Copies one row by `body`, which takes whole lines to an aligned destination.
template <class Body>
FL_INLINE void stream_row(std::byte* out, const std::byte* row, std::size_t row_bytes,
                          Body&& body) {
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(out) % kLine) % kLine;
  if (head > 0) std::memcpy(out, row, head);
  const std::size_t whole = (row_bytes - head) & ~(kLine - 1);
  body(out + head, row + head, whole);
  const std::size_t done = head + whole;
  if (done < row_bytes) std::memcpy(out + done, row + done, row_bytes - done);
}

// The caller fences.
template <void (*kLines)(std::byte*, const std::byte*, std::size_t)>
void stream_runs(std::span<const Run> runs) {
  const std::size_t ahead = runs_ahead(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    if (i + ahead < runs.size()) prefetch_row(runs[i + ahead].from, runs[i + ahead].bytes);
    if (streams_well(run.out, run.bytes)) {
      stream_row(run.out, run.from, run.bytes, kLines);
    } else {
      std::memcpy(run.out, run.from, run.bytes);
    }
  }
}

#endif

#if defined(FL_STREAM_KERNELS) && defined(__x86_64__)

__attribute__((target("avx512f"))) void stream_lines_avx512(std::byte* out, const std::byte* in,
                                                            std::size_t bytes) {
  std::size_t at = 0;
  for (; at + 4 * kLine <= bytes; at += 4 * kLine) {
    const __m512i a = _mm512_loadu_si512(in + at);
    const __m512i b = _mm512_loadu_si512(in + at + kLine);
    const __m512i c = _mm512_loadu_si512(in + at + 2 * kLine);
    const __m512i d = _mm512_loadu_si512(in + at + 3 * kLine);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at + kLine), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at + 2 * kLine), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at + 3 * kLine), d);
  }
  for (; at < bytes; at += kLine) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at), _mm512_loadu_si512(in + at));
  }
}

__attribute__((target("avx2"))) void stream_lines_avx2(std::byte* out, const std::byte* in,
                                                       std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLine) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + at));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + at + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(out + at), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(out + at + 32), b);
  }
}

template <void (*kLines)(std::byte*, const std::byte*, std::size_t)>
void copy_rows_streaming(std::byte* out, const std::byte* const* rows, std::size_t count,
                         std::size_t row_bytes) {
  if (!streams_well(out, row_bytes)) return copy_small_rows(out, rows, count, row_bytes);
  // The hardware prefetches long rows, but misses the start of shorter ones.
  const std::size_t ahead = row_bytes < 64 * kLine ? kRowsAhead : 1;
  for (std::size_t i = 0; i < count; ++i, out += row_bytes) {
    if (i + ahead < count) prefetch_row(rows[i + ahead], row_bytes);
    stream_row(out, rows[i], row_bytes, kLines);
  }
  _mm_sfence();
}

template <void (*kLines)(std::byte*, const std::byte*, std::size_t)>
void copy_runs_streaming(std::span<const Run> runs) {
  stream_runs<kLines>(runs);
  _mm_sfence();
}

#elif defined(FL_STREAM_KERNELS)

void stream_lines_neon(std::byte* out, const std::byte* in, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLine) {
    asm volatile(
        "ldp q0, q1, [%[in]]\n\t"
        "ldp q2, q3, [%[in], #32]\n\t"
        "stnp q0, q1, [%[out]]\n\t"
        "stnp q2, q3, [%[out], #32]\n\t"
        :
        : [in] "r"(in + at), [out] "r"(out + at)
        : "v0", "v1", "v2", "v3", "memory");
  }
}

void copy_rows_neon(std::byte* out, const std::byte* const* rows, std::size_t count,
                    std::size_t row_bytes) {
  if (!streams_well(out, row_bytes)) return copy_small_rows(out, rows, count, row_bytes);
  for (std::size_t i = 0; i < count; ++i, out += row_bytes) {
    if (i + 1 < count) prefetch_row(rows[i + 1], row_bytes);
    stream_row(out, rows[i], row_bytes, stream_lines_neon);
  }
  asm volatile("dmb ishst" ::: "memory");
}

void copy_runs_neon(std::span<const Run> runs) {
  stream_runs<stream_lines_neon>(runs);
  asm volatile("dmb ishst" ::: "memory");
}

#endif

std::vector<CopyKernel> supported_kernels() {
  std::vector<CopyKernel> kernels;
#if defined(FL_STREAM_KERNELS) && defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    kernels.push_back({"avx512", copy_rows_streaming<stream_lines_avx512>,
                       copy_runs_streaming<stream_lines_avx512>, convert_kernels_avx512(),
                       pixel_kernels_avx512()});
  }
  if (__builtin_cpu_supports("avx2")) {
    kernels.push_back({"avx2", copy_rows_streaming<stream_lines_avx2>,
                       copy_runs_streaming<stream_lines_avx2>, convert_kernels_avx2(),
                       pixel_kernels_avx2()});
  }
#elif defined(FL_STREAM_KERNELS)
  kernels.push_back({"neon", copy_rows_neon, copy_runs_neon, convert_kernels_portable(),
                     pixel_kernels_portable()});
#endif
  kernels.push_back({"portable", copy_rows_portable, copy_runs_portable, convert_kernels_portable(),
                     pixel_kernels_portable()});
  return kernels;
}

std::atomic<const CopyKernel*> chosen{nullptr};

}  // namespace

std::span<const CopyKernel> copy_kernels() {
  // Leaked: a worker may still copy while the process destroys its static objects.
  static const auto& kernels = *new const std::vector<CopyKernel>(supported_kernels());
  return kernels;
}

const CopyKernel& copy_kernel() {
  const CopyKernel* kernel = chosen.load(std::memory_order_relaxed);  // points to constant data
  return kernel != nullptr ? *kernel : copy_kernels().front();
}

void set_copy_kernel(std::string_view name) {
  if (name == "auto") {
    chosen.store(nullptr, std::memory_order_relaxed);
    return;
  }
  for (const CopyKernel& kernel : copy_kernels()) {
    if (name != kernel.name) continue;
    chosen.store(&kernel, std::memory_order_relaxed);
    return;
  }
  throw std::invalid_argument("this CPU has no copy kernel of that name, got '" +
                              std::string(name) + "'");
}

}  // namespace fastload
