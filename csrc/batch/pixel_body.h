// The value of one number of a delivered image. This is the only definition: host kernels loop over
// it, and GPU compilers include this header unchanged (C++17, without the standard library).
//
// NOTE [Arithmetic]. All operations are in float32, each rounded separately. The result is rounded
// once to the delivered dtype, to nearest, ties to even. Every compiler must be called with an
// option against contracting a * b + c (-ffp-contract=off, -fmad=false). Half floats and NaN, on
// which libraries and instruction sets differ, are computed in integers; NaN becomes the positive
// quiet NaN. Therefore results are equal bit for bit on every machine.
#pragma once

#include <stdint.h>

#if defined(__CUDACC__)
#define FL_BODY __host__ __device__ __forceinline__
#else
// Inlined into functions of other targets, whose instructions it then uses.
#define FL_BODY inline __attribute__((always_inline))
#endif

namespace fastload {

enum class Number : int32_t { boolean, u8, i8, u16, i16, f16, bf16, f32 };

// The word that holds a number.
template <int kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using type = uint8_t;
};
template <>
struct WordOf<2> {
  using type = uint16_t;
};
template <>
struct WordOf<4> {
  using type = uint32_t;
};
template <>
struct WordOf<8> {
  using type = uint64_t;
};

FL_BODY constexpr int number_bytes(Number number) {
  return number == Number::f32
             ? 4
             : (number == Number::boolean || number == Number::u8 || number == Number::i8 ? 1 : 2);
}

template <Number kNumber>
using NumberWord = typename WordOf<number_bytes(kNumber)>::type;

FL_BODY float float_of_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value = 0;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

FL_BODY uint32_t bits_of_float(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}

constexpr uint32_t kInfinity = 0x7F800000;
constexpr uint32_t kNaN = 0x7FC00000;

FL_BODY float float_of_half(uint32_t half) {
  const uint32_t sign = (half & 0x8000) << 16;
  const uint32_t rest = half & 0x7FFF;
  const uint32_t rebiased = (rest << 13) + (112u << 23);
  const uint32_t special = rest > 0x7C00 ? kNaN : kInfinity;
  const uint32_t tiny = bits_of_float(static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f);
  const uint32_t finite = rest < 0x0400 ? tiny : rebiased;
  return float_of_bits(sign | (rest >= 0x7C00 ? special : finite));
}

FL_BODY uint32_t half_of_float(float value) {
  const uint32_t bits = bits_of_float(value);
  const uint32_t size = bits & 0x7FFFFFFF;
  const uint32_t normal = (size - (112u << 23) + 0xFFF + ((size >> 13) & 1)) >> 13;
  // Below 2^-14: units of 2^-24. What is shifted by 25 bits is nothing.
  const uint32_t exponent = size >> 23;
  const uint32_t capped = exponent < 101 ? 101 : (exponent > 112 ? 112 : exponent);
  const uint32_t shift = 126 - capped;
  const uint32_t digits = (size & 0x7FFFFF) | 0x800000;
  const uint32_t tiny = (digits + (1u << (shift - 1)) - 1 + ((digits >> shift) & 1)) >> shift;
  uint32_t half = size < (113u << 23) ? tiny : normal;
  half = size >= (143u << 23) ? 0x7C00 : half;  // 2^16 and more; a little less rounds to infinity
  half |= (bits >> 16) & 0x8000;
  return size > kInfinity ? 0x7E00 : half;
}

FL_BODY uint32_t brain_of_float(float value) {
  const uint32_t bits = bits_of_float(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return (bits & 0x7FFFFFFF) > kInfinity ? kNaN >> 16 : rounded;
}

template <Number kNumber>
FL_BODY float value_of(NumberWord<kNumber> word) {
  if constexpr (kNumber == Number::boolean) {
    return word != 0 ? 1.0f : 0.0f;
  } else if constexpr (kNumber == Number::i8) {
    return static_cast<float>(static_cast<int8_t>(word));
  } else if constexpr (kNumber == Number::i16) {
    return static_cast<float>(static_cast<int16_t>(word));
  } else if constexpr (kNumber == Number::f16) {
    return float_of_half(word);
  } else if constexpr (kNumber == Number::bf16) {
    return float_of_bits(static_cast<uint32_t>(word) << 16);
  } else if constexpr (kNumber == Number::f32) {
    return float_of_bits(word);
  } else {
    return static_cast<float>(static_cast<int32_t>(word));
  }
}

// REQUIRES: kNumber is a float.
template <Number kNumber>
FL_BODY NumberWord<kNumber> rounded_to(float value) {
  if constexpr (kNumber == Number::f16) {
    return static_cast<uint16_t>(half_of_float(value));
  } else if constexpr (kNumber == Number::bf16) {
    return static_cast<uint16_t>(brain_of_float(value));
  } else {
    const uint32_t bits = bits_of_float(value);
    return (bits & 0x7FFFFFFF) > kInfinity ? kNaN : bits;
  }
}

// A number between its dtypes; `normalise` scales it, and makes it (x - mean) / std.
template <Number kStored, Number kDelivered, bool kNormalise>
FL_BODY NumberWord<kDelivered> delivered_number(NumberWord<kStored> word, float scale, float mean,
                                                float std) {
  float value = value_of<kStored>(word);
  if constexpr (kNormalise) {
    const float scaled = value * scale;
    const float centered = scaled - mean;
    value = centered / std;
  }
  return rounded_to<kDelivered>(value);
}

// Sizes of an image as it is stored, (height, width, channels), and as it is delivered: of
// out_height rows and out_width columns, with the channels last, or first if planar.
struct ImageShape {
  int32_t height, width, channels;
  int32_t out_height, out_width;
  bool planar;
};

// What was drawn for one sample: the corner of its window in the stored image, which may lie
// outside, and whether the window is mirrored.
struct ImageWindow {
  int32_t top, left;
  bool flip;
};

// Index of the first number of the stored image that belongs to pixel `pixel` of the delivered
// image; -1 outside the stored image, which is padded with zeros.
FL_BODY int32_t stored_pixel(const ImageShape& shape, const ImageWindow& window, uint32_t pixel) {
  const auto width = static_cast<uint32_t>(shape.out_width);
  const auto column = static_cast<int32_t>(pixel % width);
  const int32_t y = window.top + static_cast<int32_t>(pixel / width);
  const int32_t x = window.left + (window.flip ? shape.out_width - 1 - column : column);
  if (y < 0 || y >= shape.height || x < 0 || x >= shape.width) return -1;
  return (y * shape.width + x) * shape.channels;
}

// The same for number `at`. Sets its channel.
FL_BODY int32_t stored_place(const ImageShape& shape, const ImageWindow& window, uint32_t at,
                             uint32_t& channel) {
  const auto channels = static_cast<uint32_t>(shape.channels);
  const uint32_t plane =
      static_cast<uint32_t>(shape.out_height) * static_cast<uint32_t>(shape.out_width);
  channel = shape.planar ? at / plane : at % channels;
  const uint32_t pixel = shape.planar ? at % plane : at / channels;
  const int32_t first = stored_pixel(shape, window, pixel);
  return first < 0 ? -1 : first + static_cast<int32_t>(channel);
}

}  // namespace fastload
