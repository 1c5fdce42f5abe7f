#include "batch/pixel_kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/inline.h"
#include "batch/stream.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastload {
namespace {

template <class Word>
FL_BODY Word word_at(const std::byte* in, std::size_t at) {
  Word word;
  std::memcpy(&word, in + at * sizeof(Word), sizeof(Word));
  return word;
}

template <class Word>
FL_BODY void put_word(std::byte* out, std::size_t at, Word word) {
  std::memcpy(out + at * sizeof(Word), &word, sizeof(Word));
}

template <Number kStored, Number kDelivered, bool kNormalise>
FL_BODY void convert(const std::byte* __restrict in, std::byte* __restrict out, std::size_t count,
                     const ChannelConstants& constants) {
  using In = NumberWord<kStored>;
  using Out = NumberWord<kDelivered>;
  const float* __restrict means = constants.means;
  const float* __restrict stds = constants.stds;
  const float scale = constants.scale;
  for (std::size_t first = 0; first < count; first += constants.pattern) {
    const std::size_t some = std::min(constants.pattern, count - first);
    for (std::size_t i = 0; i < some; ++i) {
      put_word<Out>(out, i,
                    delivered_number<kStored, kDelivered, kNormalise>(word_at<In>(in, i), scale,
                                                                      means[i], stds[i]));
    }
    in += some * sizeof(In);
    out += some * sizeof(Out);
  }
}

template <class Word, std::size_t kChannels, bool kMirrored>
FL_BODY void split(const std::byte* __restrict in, std::byte* __restrict out, std::size_t plane,
                   std::size_t count, std::size_t any_channels) {
  const std::size_t channels = kChannels == 0 ? any_channels : kChannels;
  for (std::size_t x = 0; x < count; ++x) {
    const std::size_t to = kMirrored ? count - 1 - x : x;
    for (std::size_t c = 0; c < channels; ++c) {
      put_word<Word>(out, c * plane + to, word_at<Word>(in, x * channels + c));
    }
  }
}

template <class Word, std::size_t kChannels>
FL_BODY void mirror(const std::byte* __restrict in, std::byte* __restrict out, std::size_t count,
                    std::size_t any_channels) {
  const std::size_t channels = kChannels == 0 ? any_channels : kChannels;
  for (std::size_t x = 0; x < count; ++x) {
    for (std::size_t c = 0; c < channels; ++c) {
      put_word<Word>(out, (count - 1 - x) * channels + c, word_at<Word>(in, x * channels + c));
    }
  }
}

template <class Word>
void look_up(const std::byte* in, std::byte* out, std::size_t count, const std::byte* words,
             const std::byte*, bool) {
  for (std::size_t i = 0; i < count; ++i) {
    put_word<Word>(out, i, word_at<Word>(words, std::to_integer<std::size_t>(in[i])));
  }
}

// Functions of every kind for one kind of CPU, whose instructions the loops above then use.
#define FL_PIXEL_TARGET(Target, attribute)                                                        \
  struct Target {                                                                                 \
    template <Number kStored, Number kDelivered, bool kNormalise>                                 \
    attribute static void convert_numbers(const std::byte* in, std::byte* out, std::size_t count, \
                                          const ChannelConstants& constants) {                    \
      convert<kStored, kDelivered, kNormalise>(in, out, count, constants);                        \
    }                                                                                             \
    template <class Word, std::size_t kChannels, bool kMirrored>                                  \
    attribute static void split_pixels(const std::byte* in, std::byte* out, std::size_t plane,    \
                                       std::size_t count, std::size_t channels) {                 \
      split<Word, kChannels, kMirrored>(in, out, plane, count, channels);                         \
    }                                                                                             \
    template <class Word, std::size_t kChannels>                                                  \
    attribute static void mirror_pixels(const std::byte* in, std::byte* out, std::size_t count,   \
                                        std::size_t channels) {                                   \
      mirror<Word, kChannels>(in, out, count, channels);                                          \
    }                                                                                             \
  }

FL_PIXEL_TARGET(Portable, );

template <class Target, Number kStored, Number kDelivered>
constexpr std::array<ConvertNumbers, 2> kConversions{
    Target::template convert_numbers<kStored, kDelivered, false>,
    Target::template convert_numbers<kStored, kDelivered, true>};

template <class Target, class Word, std::size_t kChannels>
constexpr std::array<SplitPixels, 2> kSplits{Target::template split_pixels<Word, kChannels, false>,
                                             Target::template split_pixels<Word, kChannels, true>};

template <class Target, std::size_t... kNumbers>
void fill_conversions(PixelKernels& kernels, std::index_sequence<kNumbers...>) {
  kernels.convert = {{{{kConversions<Target, static_cast<Number>(kNumbers), Number::f16>,
                        kConversions<Target, static_cast<Number>(kNumbers), Number::bf16>,
                        kConversions<Target, static_cast<Number>(kNumbers), Number::f32>}}...}};
}

template <class Target, std::size_t... kLog2>
void fill_shuffles(PixelKernels& kernels, std::index_sequence<kLog2...>) {
  kernels.splits = {{{{kSplits<Target, typename WordOf<1 << kLog2>::type, 0>,
                       kSplits<Target, typename WordOf<1 << kLog2>::type, 3>,
                       kSplits<Target, typename WordOf<1 << kLog2>::type, 4>}}...}};
  kernels.mirrors = {{{{Target::template mirror_pixels<typename WordOf<1 << kLog2>::type, 0>,
                        Target::template mirror_pixels<typename WordOf<1 << kLog2>::type, 3>,
                        Target::template mirror_pixels<typename WordOf<1 << kLog2>::type, 4>}}...}};
}

template <class Target>
PixelKernels kernels_of(LookUp look_up_16, LookUp look_up_32) {
  PixelKernels kernels{};
  fill_conversions<Target>(kernels, std::make_index_sequence<8>());
  fill_shuffles<Target>(kernels, std::make_index_sequence<4>());
  kernels.look_up = {look_up_16, look_up_32};
  kernels.fence = [] {};
  return kernels;
}

#if defined(FL_STREAM_KERNELS) && defined(__x86_64__)

#define FL_VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))

FL_PIXEL_TARGET(Avx2, __attribute__((target("avx2"))));

// The unmasked permutations of GCC 12 warn that they read an uninitialised register.
constexpr __mmask8 kAll8 = 0xFF;
constexpr __mmask16 kAll16 = 0xFFFF;

// A table of words in registers: all first bytes, then all second ones, ...
template <std::size_t kBytes>
struct TableRegisters {
  __m512i parts[4 * kBytes];
};

// 64 bytes become 64 words.
template <std::size_t kBytes>
FL_VBMI FL_INLINE void look_up_64(const TableRegisters<kBytes>& table, __m512i bytes,
                                  __m512i (&words)[kBytes]) {
  // Unpacking works inside each quarter of a register, so the quarters are laid out for it.
  if constexpr (kBytes == 2) {
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    bytes = _mm512_maskz_permutexvar_epi64(kAll8, order, bytes);
  } else {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    bytes = _mm512_maskz_permutexvar_epi32(kAll16, order, bytes);
  }
  const __mmask64 upper = _mm512_movepi8_mask(bytes);
  __m512i found[kBytes];
  for (std::size_t b = 0; b < kBytes; ++b) {
    const __m512i* p = table.parts + 4 * b;
    found[b] = _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(p[0], bytes, p[1]),
                                      _mm512_permutex2var_epi8(p[2], bytes, p[3]));
  }
  const __m512i low = _mm512_unpacklo_epi8(found[0], found[1]);
  const __m512i high = _mm512_unpackhi_epi8(found[0], found[1]);
  if constexpr (kBytes == 2) {
    words[0] = low;
    words[1] = high;
  } else {
    const __m512i upper_low = _mm512_unpacklo_epi8(found[2], found[3]);
    const __m512i upper_high = _mm512_unpackhi_epi8(found[2], found[3]);
    words[0] = _mm512_unpacklo_epi16(low, upper_low);
    words[1] = _mm512_unpackhi_epi16(low, upper_low);
    words[2] = _mm512_unpacklo_epi16(high, upper_high);
    words[3] = _mm512_unpackhi_epi16(high, upper_high);
  }
}

template <std::size_t kBytes>
FL_VBMI void look_up_vbmi(const std::byte* in, std::byte* out, std::size_t count,
                          const std::byte* words, const std::byte* split, bool stream) {
  TableRegisters<kBytes> table;
  for (std::size_t i = 0; i < 4 * kBytes; ++i) {
    table.parts[i] = _mm512_loadu_si512(split + i * kLine);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(out);
  stream = stream && address % kBytes == 0;
  if (stream) {
    const std::size_t head = std::min(count, (kLine - address % kLine) % kLine / kBytes);
    look_up<typename WordOf<kBytes>::type>(in, out, head, words, split, false);
    in += head;
    out += kBytes * head;
    count -= head;
  }
  __m512i found[kBytes];
  for (; count >= kLine; count -= kLine, in += kLine, out += kBytes * kLine) {
    look_up_64<kBytes>(table, _mm512_loadu_si512(in), found);
    for (std::size_t i = 0; i < kBytes; ++i) {
      if (stream) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(out + i * kLine), found[i]);
      } else {
        _mm512_storeu_si512(out + i * kLine, found[i]);
      }
    }
  }
  if (count == 0) return;
  const __mmask64 rest = ~__mmask64{0} >> (kLine - count);
  look_up_64<kBytes>(table, _mm512_maskz_loadu_epi8(rest, in), found);
  alignas(kLine) std::byte last[kBytes * kLine];
  for (std::size_t i = 0; i < kBytes; ++i) _mm512_store_si512(last + i * kLine, found[i]);
  std::memcpy(out, last, kBytes * count);
}

// For three registers of pixels of three bytes: where byte i of a channel lies in the first two of
// them, and in these bytes and the third one.
struct SplitIndices {
  alignas(kLine) std::uint8_t early[3][kLine];
  alignas(kLine) std::uint8_t late[3][kLine];
};

template <bool kMirrored>
constexpr SplitIndices split_indices() {
  SplitIndices indices{};
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t i = 0; i < kLine; ++i) {
      const std::size_t at = 3 * (kMirrored ? kLine - 1 - i : i) + c;
      indices.early[c][i] = static_cast<std::uint8_t>(at % 128);
      indices.late[c][i] = static_cast<std::uint8_t>(at < 128 ? i : at - 64);
    }
  }
  return indices;
}

template <bool kMirrored>
FL_VBMI void split_3_vbmi(const std::byte* in, std::byte* out, std::size_t plane, std::size_t count,
                          std::size_t) {
  static constexpr SplitIndices kIndices = split_indices<kMirrored>();
  std::size_t x = 0;
  for (; x + kLine <= count; x += kLine) {
    const __m512i a = _mm512_loadu_si512(in + 3 * x);
    const __m512i b = _mm512_loadu_si512(in + 3 * x + kLine);
    const __m512i c = _mm512_loadu_si512(in + 3 * x + 2 * kLine);
    const std::size_t to = kMirrored ? count - x - kLine : x;
    for (std::size_t channel = 0; channel < 3; ++channel) {
      const __m512i early =
          _mm512_permutex2var_epi8(a, _mm512_load_si512(kIndices.early[channel]), b);
      const __m512i all =
          _mm512_permutex2var_epi8(early, _mm512_load_si512(kIndices.late[channel]), c);
      _mm512_storeu_si512(out + channel * plane + to, all);
    }
  }
  const std::size_t rest = count - x;
  split<std::uint8_t, 3, kMirrored>(in + 3 * x, out + (kMirrored ? 0 : x), plane, rest, 3);
}

#endif

}  // namespace

PixelKernels pixel_kernels_portable() {
  return kernels_of<Portable>(look_up<std::uint16_t>, look_up<std::uint32_t>);
}

#if defined(FL_STREAM_KERNELS) && defined(__x86_64__)

PixelKernels pixel_kernels_avx2() { return kernels_of<Avx2>(nullptr, nullptr); }

PixelKernels pixel_kernels_avx512() {
  PixelKernels kernels = pixel_kernels_avx2();
  if (!__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512bw")) return kernels;
  kernels.look_up = {look_up_vbmi<2>, look_up_vbmi<4>};
  kernels.splits[0][1] = {split_3_vbmi<false>, split_3_vbmi<true>};
  kernels.fence = [] { _mm_sfence(); };
  return kernels;
}

#else

PixelKernels pixel_kernels_avx2() { return pixel_kernels_portable(); }
PixelKernels pixel_kernels_avx512() { return pixel_kernels_portable(); }

#endif

}  // namespace fastload
