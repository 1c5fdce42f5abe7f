// The loops under deliver_images(), for each kind of CPU.
#pragma once

#include <array>
#include <cstddef>

#include "batch/pixel_body.h"

namespace fastload {

// Means and standard deviations of neighbouring numbers, repeated after `pattern` of them.
struct ChannelConstants {
  const float* means;
  const float* stds;
  std::size_t pattern;
  float scale;
};

// All kernels take any address, read only `in`, write only `out`, and are thread-safe.

// Converts `count` numbers to floats.
using ConvertNumbers = void (*)(const std::byte* in, std::byte* out, std::size_t count,
                                const ChannelConstants& constants);
// Writes words[byte] for each of `count` bytes. `split`: the first bytes of all words, then their
// second bytes, ...
using LookUp = void (*)(const std::byte* in, std::byte* out, std::size_t count,
                        const std::byte* words, const std::byte* split, bool stream);
// Moves number x of channel c of `count` pixels to number c * plane + x, or to c * plane + count -
// 1
// - x if the row is mirrored.
using SplitPixels = void (*)(const std::byte* in, std::byte* out, std::size_t plane,
                             std::size_t count, std::size_t channels);
// Writes the pixels in reverse order.
using MirrorPixels = void (*)(const std::byte* in, std::byte* out, std::size_t count,
                              std::size_t channels);

struct PixelKernels {
  std::array<std::array<std::array<ConvertNumbers, 2>, 3>, 8> convert;  // see convert_of()
  std::array<LookUp, 2> look_up;  // of 16- and of 32-bit words; nullptr: converting is faster
  std::array<std::array<std::array<SplitPixels, 2>, 3>, 4> splits;  // see split()
  std::array<std::array<MirrorPixels, 3>, 4> mirrors;
  void (*fence)();  // call after streaming stores

  ConvertNumbers convert_of(Number stored, Number delivered, bool normalise) const {
    const int row = static_cast<int>(delivered) - static_cast<int>(Number::f16);
    return convert[static_cast<std::size_t>(stored)][static_cast<std::size_t>(row)][normalise];
  }
  LookUp look_up_of(std::size_t word_bytes) const { return look_up[word_bytes / 4]; }
  SplitPixels split(std::size_t item_bytes, std::size_t channels, bool mirrored) const {
    return splits[log2(item_bytes)][kind(channels)][mirrored];
  }
  MirrorPixels mirror(std::size_t item_bytes, std::size_t channels) const {
    return mirrors[log2(item_bytes)][kind(channels)];
  }

 private:
  static std::size_t log2(std::size_t bytes) {
    return static_cast<std::size_t>(__builtin_ctzll(bytes));
  }
  static std::size_t kind(std::size_t channels) {
    return channels == 3 ? 1 : channels == 4 ? 2 : 0;
  }
};

PixelKernels pixel_kernels_portable();
// REQUIRES: the CPU has AVX2. On other architectures they are
// the portable ones.
PixelKernels pixel_kernels_avx2();
// The fastest for this CPU, which has AVX-512F. REQUIRES: as above.
PixelKernels pixel_kernels_avx512();

}  // namespace fastload
