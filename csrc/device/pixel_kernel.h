// The work of one thread of the kernels that deliver images on a GPU. make_ptx.py compiles it to
// PTX, and tests compile it for the host (C++17, without the standard library).
#pragma once

#include "batch/pixel_body.h"

// Unrolled loops make the PTX several times larger, and each driver compiles it at first use.
// Without them enough threads are in flight.
#if defined(__CUDACC__)
#define FL_ROLLED _Pragma("unroll 1")
#else
#define FL_ROLLED
#endif

namespace fastload {

// Channels that may have their own mean and std: more than images have, and few enough for kernel
// arguments, which are passed by value.
constexpr uint32_t kMaxPixelConstants = 64;
// Threads per block. The pixels of one thread are this far apart, so that neighbouring threads
// write neighbouring addresses.
constexpr uint32_t kPixelThreads = 128;
constexpr uint32_t kPixelsPerThread = 4;
constexpr uint32_t kPixelsPerBlock = kPixelThreads * kPixelsPerThread;

// The argument of every kernel. Pointers are addresses on the device.
struct PixelArguments {
  const void* in;  // `images` stored images, one after another
  const ImageWindow*
      windows;  // one per image; nullptr: images are delivered from their first pixel
  void* out;
  ImageShape shape;
  uint32_t images;
  uint32_t constants;  // means and stds: one per channel, or 1 for all channels
  bool normalise;
  float scale;
  float means[kMaxPixelConstants];
  float stds[kMaxPixelConstants];
};

// The position of a thread in the grid: x runs along the pixels of an image, y along images.
struct PixelThread {
  uint32_t block, thread;
  uint32_t image, image_step;  // its first image, and the distance to its next one
};

// Converts a number from one dtype to another, and normalises it if that is wanted.
template <Number kStored, Number kDelivered>
struct Converted {
  using In = NumberWord<kStored>;
  using Out = NumberWord<kDelivered>;

  FL_BODY static Out of(In word, uint32_t channel, const PixelArguments& a) {
    if (!a.normalise) return delivered_number<kStored, kDelivered, false>(word, 1, 0, 1);
    const uint32_t i = channel < a.constants ? channel : 0;
    return delivered_number<kStored, kDelivered, true>(word, a.scale, a.means[i], a.stds[i]);
  }
};

// Copies a number.
template <int kBytes>
struct Copied {
  using In = typename WordOf<kBytes>::type;
  using Out = In;

  FL_BODY static Out of(In word, uint32_t, const PixelArguments&) { return word; }
};

// Delivers the pixels of one thread. `Work`: Converted or Copied.
template <class Work>
FL_BODY void deliver_pixels(const PixelArguments& a, const PixelThread& at) {
  const ImageShape& shape = a.shape;
  const auto channels = static_cast<uint32_t>(shape.channels);
  const uint32_t stored =
      static_cast<uint32_t>(shape.height) * static_cast<uint32_t>(shape.width) * channels;
  const uint32_t pixels =
      static_cast<uint32_t>(shape.out_height) * static_cast<uint32_t>(shape.out_width);
  const uint32_t between_pixels = shape.planar ? 1 : channels;
  const uint32_t between_channels = shape.planar ? pixels : 1;
  const uint32_t first = at.block * kPixelsPerBlock + at.thread;
  for (uint32_t image = at.image; image < a.images; image += at.image_step) {
    const ImageWindow window = a.windows == nullptr ? ImageWindow{0, 0, false} : a.windows[image];
    const auto* in = static_cast<const typename Work::In*>(a.in) + uint64_t{image} * stored;
    auto* out = static_cast<typename Work::Out*>(a.out) + uint64_t{image} * pixels * channels;
    FL_ROLLED
    for (uint32_t k = 0; k < kPixelsPerThread; ++k) {
      const uint32_t pixel = first + k * kPixelThreads;
      if (pixel >= pixels) break;
      const int32_t from = stored_pixel(shape, window, pixel);
      uint32_t to = pixel * between_pixels;
      FL_ROLLED
      for (uint32_t channel = 0; channel < channels; ++channel) {
        const auto word =
            from < 0 ? typename Work::In{0} : in[static_cast<uint32_t>(from) + channel];
        out[to] = Work::of(word, channel, a);
        to += between_channels;
      }
    }
  }
}

}  // namespace fastload

// X(name, ...): the kernels, and the Work of each.
#define FASTLOAD_PIXEL_CONVERSIONS(X, stored)                                     \
  X(pixels_##stored##_to_f16, fastload::Converted<Number::stored, Number::f16>)   \
  X(pixels_##stored##_to_bf16, fastload::Converted<Number::stored, Number::bf16>) \
  X(pixels_##stored##_to_f32, fastload::Converted<Number::stored, Number::f32>)
#define FASTLOAD_PIXEL_KERNELS(X)        \
  FASTLOAD_PIXEL_CONVERSIONS(X, boolean) \
  FASTLOAD_PIXEL_CONVERSIONS(X, u8)      \
  FASTLOAD_PIXEL_CONVERSIONS(X, i8)      \
  FASTLOAD_PIXEL_CONVERSIONS(X, u16)     \
  FASTLOAD_PIXEL_CONVERSIONS(X, i16)     \
  FASTLOAD_PIXEL_CONVERSIONS(X, f16)     \
  FASTLOAD_PIXEL_CONVERSIONS(X, bf16)    \
  FASTLOAD_PIXEL_CONVERSIONS(X, f32)     \
  X(pixels_of_1_byte, Copied<1>)         \
  X(pixels_of_2_bytes, Copied<2>)        \
  X(pixels_of_4_bytes, Copied<4>)        \
  X(pixels_of_8_bytes, Copied<8>)
