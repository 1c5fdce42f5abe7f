#include "batch/convert.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "batch/stream.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastload {
namespace {

constexpr std::size_t kWide = sizeof(std::int64_t);

template <class Number>
void convert_numbers(std::byte* out, const std::byte* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Number number;
    std::memcpy(&number, in + i * sizeof(Number), sizeof(Number));
    const auto wide = static_cast<std::int64_t>(number);
    std::memcpy(out + i * kWide, &wide, kWide);
  }
}

template <class Number>
void convert_runs_portable(std::span<const Run> runs) {
  const std::size_t ahead = runs_ahead(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i + ahead < runs.size()) prefetch_row(runs[i + ahead].from, runs[i + ahead].bytes);
    convert_numbers<Number>(runs[i].out, runs[i].from, runs[i].bytes / sizeof(Number));
  }
}

#if defined(FL_STREAM_KERNELS) && defined(__x86_64__)

#define FL_AVX2 __attribute__((target("avx2")))
#define FL_AVX512 __attribute__((target("avx512f")))
constexpr std::size_t kLineNumbers = kLine / kWide;
// Batches below this size are written by ordinary stores, since they stay in the second cache
// until they are used.
constexpr std::size_t kCachedBytes = 1 << 20;

// The unmasked conversions of GCC 12 warn that they read an uninitialised register.
constexpr __mmask8 kAll = 0xFF;

template <class Number>
FL_AVX512 inline __m512i widen_line(const std::byte* in) {
  const auto* data = reinterpret_cast<const __m128i*>(in);
  if constexpr (sizeof(Number) == 1) {
    const __m128i numbers = _mm_loadl_epi64(data);
    return std::is_signed_v<Number> ? _mm512_maskz_cvtepi8_epi64(kAll, numbers)
                                    : _mm512_maskz_cvtepu8_epi64(kAll, numbers);
  } else if constexpr (sizeof(Number) == 2) {
    const __m128i numbers = _mm_loadu_si128(data);
    return std::is_signed_v<Number> ? _mm512_maskz_cvtepi16_epi64(kAll, numbers)
                                    : _mm512_maskz_cvtepu16_epi64(kAll, numbers);
  } else {
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
    return std::is_signed_v<Number> ? _mm512_maskz_cvtepi32_epi64(kAll, numbers)
                                    : _mm512_maskz_cvtepu32_epi64(kAll, numbers);
  }
}

template <class Number, bool kStream>
FL_AVX512 void convert_lines_avx512(std::byte* out, const std::byte* in, std::size_t lines) {
  for (std::size_t line = 0; line < lines; ++line, out += kLine) {
    const __m512i wide = widen_line<Number>(in + line * kLineNumbers * sizeof(Number));
    if constexpr (kStream) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(out), wide);
    } else {
      _mm512_storeu_si512(out, wide);
    }
  }
}

template <class Number>
FL_AVX2 inline __m256i widen_half_line(const std::byte* in) {
  if constexpr (sizeof(Number) == 4) {
    const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
    return std::is_signed_v<Number> ? _mm256_cvtepi32_epi64(numbers)
                                    : _mm256_cvtepu32_epi64(numbers);
  } else if constexpr (sizeof(Number) == 2) {
    const __m128i numbers = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in));
    return std::is_signed_v<Number> ? _mm256_cvtepi16_epi64(numbers)
                                    : _mm256_cvtepu16_epi64(numbers);
  } else {
    std::int32_t four;
    std::memcpy(&four, in, sizeof(four));
    const __m128i numbers = _mm_cvtsi32_si128(four);
    return std::is_signed_v<Number> ? _mm256_cvtepi8_epi64(numbers) : _mm256_cvtepu8_epi64(numbers);
  }
}

template <class Number, bool kStream>
FL_AVX2 void convert_lines_avx2(std::byte* out, const std::byte* in, std::size_t lines) {
  for (std::size_t half = 0; half < 2 * lines; ++half, out += kLine / 2) {
    const __m256i wide = widen_half_line<Number>(in + half * kLineNumbers / 2 * sizeof(Number));
    if constexpr (kStream) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(out), wide);
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), wide);
    }
  }
}

using ConvertLines = void (*)(std::byte*, const std::byte*, std::size_t);

// Converts whole lines by kStreamed or kStored, and the rest number by number.
template <class Number, ConvertLines kStreamed, ConvertLines kStored>
void convert_runs(std::span<const Run> runs) {
  const std::size_t ahead = runs_ahead(runs);
  const bool large = bytes_of(runs) / sizeof(Number) * kWide >= kCachedBytes;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i + ahead < runs.size()) prefetch_row(runs[i + ahead].from, runs[i + ahead].bytes);
    auto [from, out, bytes] = runs[i];
    const std::size_t count = bytes / sizeof(Number);
    const auto address = reinterpret_cast<std::uintptr_t>(out);
    const bool stream = large && address % kWide == 0 && streams_well(out, count * kWide);
    const std::size_t head = stream ? (kLine - address % kLine) % kLine / kWide : 0;
    convert_numbers<Number>(out, from, head);
    out += head * kWide;
    from += head * sizeof(Number);
    const std::size_t lines = (count - head) / kLineNumbers;
    (stream ? kStreamed : kStored)(out, from, lines);
    const std::size_t done = lines * kLineNumbers;
    convert_numbers<Number>(out + done * kWide, from + done * sizeof(Number), count - head - done);
  }
  _mm_sfence();
}

template <class Number>
constexpr CopyRuns kAvx512 =
    convert_runs<Number, convert_lines_avx512<Number, true>, convert_lines_avx512<Number, false>>;
template <class Number>
constexpr CopyRuns kAvx2 =
    convert_runs<Number, convert_lines_avx2<Number, true>, convert_lines_avx2<Number, false>>;

#endif

}  // namespace

CopyRuns ConvertKernels::of(Stored stored) const {
  switch (stored) {
    case Stored::kU8:
      return u8;
    case Stored::kI8:
      return i8;
    case Stored::kU16:
      return u16;
    case Stored::kI16:
      return i16;
    case Stored::kU32:
      return u32;
    default:
      return i32;
  }
}

ConvertKernels convert_kernels_portable() {
  return {convert_runs_portable<std::uint8_t>,  convert_runs_portable<std::int8_t>,
          convert_runs_portable<std::uint16_t>, convert_runs_portable<std::int16_t>,
          convert_runs_portable<std::uint32_t>, convert_runs_portable<std::int32_t>};
}

#if defined(FL_STREAM_KERNELS) && defined(__x86_64__)

ConvertKernels convert_kernels_avx2() {
  return {kAvx2<std::uint8_t>, kAvx2<std::int8_t>,   kAvx2<std::uint16_t>,
          kAvx2<std::int16_t>, kAvx2<std::uint32_t>, kAvx2<std::int32_t>};
}

ConvertKernels convert_kernels_avx512() {
  return {kAvx512<std::uint8_t>, kAvx512<std::int8_t>,   kAvx512<std::uint16_t>,
          kAvx512<std::int16_t>, kAvx512<std::uint32_t>, kAvx512<std::int32_t>};
}

#else

ConvertKernels convert_kernels_avx2() { return convert_kernels_portable(); }
ConvertKernels convert_kernels_avx512() { return convert_kernels_portable(); }

#endif

}  // namespace fastload
