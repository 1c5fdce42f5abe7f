#include "batch/pixels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "batch/copy.h"
#include "check.h"

using namespace fastload;

namespace {

constexpr std::size_t kCanary = 128;
constexpr std::byte kUntouched{0xA5};
const std::vector<Number> kStored{Number::boolean, Number::u8,  Number::i8,   Number::u16,
                                  Number::i16,     Number::f16, Number::bf16, Number::f32};
const std::vector<Number> kDelivered{Number::f16, Number::bf16, Number::f32};

using Bytes = std::vector<std::byte>;

// A function of the body for each pair of dtypes.
using OneNumber = void (*)(const std::byte* in, std::byte* out, float scale, float mean, float std);

template <Number kIn, Number kOut, bool kNormalise>
void one_number(const std::byte* in, std::byte* out, float scale, float mean, float std) {
  NumberWord<kIn> word;
  std::memcpy(&word, in, sizeof(word));
  const auto made = delivered_number<kIn, kOut, kNormalise>(word, scale, mean, std);
  std::memcpy(out, &made, sizeof(made));
}

template <Number kIn, Number kOut>
OneNumber body_of(bool normalise) {
  return normalise ? one_number<kIn, kOut, true> : one_number<kIn, kOut, false>;
}

template <Number kIn>
OneNumber body_of(Number delivered, bool normalise) {
  if (delivered == Number::f16) return body_of<kIn, Number::f16>(normalise);
  if (delivered == Number::bf16) return body_of<kIn, Number::bf16>(normalise);
  return body_of<kIn, Number::f32>(normalise);
}

OneNumber body_of(const Conversion& c) {
  switch (c.stored) {
    case Number::boolean:
      return body_of<Number::boolean>(c.delivered, c.normalise);
    case Number::u8:
      return body_of<Number::u8>(c.delivered, c.normalise);
    case Number::i8:
      return body_of<Number::i8>(c.delivered, c.normalise);
    case Number::u16:
      return body_of<Number::u16>(c.delivered, c.normalise);
    case Number::i16:
      return body_of<Number::i16>(c.delivered, c.normalise);
    case Number::f16:
      return body_of<Number::f16>(c.delivered, c.normalise);
    case Number::bf16:
      return body_of<Number::bf16>(c.delivered, c.normalise);
    default:
      return body_of<Number::f32>(c.delivered, c.normalise);
  }
}

// An image number by number, the slow way.
void deliver_slowly(const PixelPlan& plan, const ImageShape& shape, const std::byte* image,
                    const ImageWindow& window, std::byte* out) {
  const auto item = static_cast<std::size_t>(plan.spec().item_bytes);
  const auto out_item = static_cast<std::size_t>(plan.delivered_item_bytes());
  const auto count = static_cast<std::uint32_t>(plan.delivered_bytes(shape)) / out_item;
  for (std::uint32_t at = 0; at < count; ++at) {
    std::uint32_t channel = 0;
    const std::int32_t place = stored_place(shape, window, at, channel);
    std::byte number[8] = {};
    if (place >= 0) std::memcpy(number, image + static_cast<std::size_t>(place) * item, item);
    if (!plan.spec().conversion) {
      std::memcpy(out + at * item, number, item);
      continue;
    }
    const Conversion& c = *plan.spec().conversion;
    const std::size_t k = c.means.size() == 1 ? 0 : channel;
    body_of(c)(number, out + at * out_item, c.scale, c.means[k], c.stds[k]);
  }
}

// Images from odd addresses to a misaligned one, by the kernel in use.
void check_images(const PixelPlan& plan, std::int64_t height, std::int64_t width,
                  const std::vector<ImageWindow>& windows, const Bytes& source, std::size_t from,
                  std::size_t to, const std::string& what) {
  const ImageShape shape = plan.shape(height, width);
  const auto in_bytes = static_cast<std::size_t>(plan.stored_bytes(shape));
  const auto out_bytes = static_cast<std::size_t>(plan.delivered_bytes(shape));
  std::vector<Bytes> images;  // of exactly their size, so that AddressSanitizer sees their ends
  std::vector<const std::byte*> rows;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const auto* begin = source.data() + (from + 7919 * i) % (source.size() - in_bytes);
    images.emplace_back(begin, begin + in_bytes);
    rows.push_back(images.back().data());
  }
  Bytes got(windows.size() * out_bytes + 2 * kCanary + 64, kUntouched);
  const auto misaligned = reinterpret_cast<std::uintptr_t>(got.data()) % 64;
  std::byte* out = got.data() + kCanary + (64 - misaligned) % 64 + to;
  Bytes scratch(plan.scratch_bytes(shape));
  deliver_images(plan, shape, rows.data(), windows, out, scratch.data());
  Bytes wanted(windows.size() * out_bytes);
  for (std::size_t i = 0; i < windows.size(); ++i) {
    deliver_slowly(plan, shape, rows[i], windows[i], wanted.data() + i * out_bytes);
  }
  if (!std::equal(wanted.begin(), wanted.end(), out)) check::fail(__FILE__, __LINE__, what);
  const auto untouched = [](std::byte byte) { return byte == kUntouched; };
  const auto at = static_cast<std::ptrdiff_t>(out - got.data());
  const auto size = static_cast<std::ptrdiff_t>(wanted.size());
  if (!std::all_of(got.begin(), got.begin() + at, untouched) ||
      !std::all_of(got.begin() + at + size, got.end(), untouched)) {
    check::fail(__FILE__, __LINE__, what + ": wrote outside");
  }
}

PixelSpec converting(Number stored, Number delivered, std::size_t channels, bool normalise) {
  PixelSpec spec{number_bytes(stored), static_cast<std::int64_t>(channels)};
  Conversion conversion{stored, delivered, normalise, normalise ? 1.0f / 255 : 1.0f};
  for (std::size_t c = 1; normalise && c < channels; ++c) {
    conversion.means.push_back(0.1f * static_cast<float>(c) - 0.3f);
    conversion.stds.push_back(0.7f / static_cast<float>(c));
  }
  spec.conversion = conversion;
  return spec;
}

// Windows of this size at every corner of the image and beyond it, mirrored or not.
std::vector<ImageWindow> corners(std::int32_t height, std::int32_t width, std::int32_t out_height,
                                 std::int32_t out_width, std::int32_t beyond) {
  std::vector<ImageWindow> windows;
  for (std::int32_t top : {-beyond, 0, height - out_height, height - out_height + beyond}) {
    for (std::int32_t left : {-beyond, 0, width - out_width, width - out_width + beyond}) {
      windows.push_back({top, left, false});
      windows.push_back({top, left, true});
    }
  }
  return windows;
}

void check_refused(const PixelSpec& spec) { CHECK_THROWS(std::invalid_argument, PixelPlan{spec}); }

void check_bodies() {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = float_of_half(bits);
    const bool nan = (bits & 0x7FFF) > 0x7C00;
    CHECK(half_of_float(value) == (nan ? 0x7E00 : bits));
    const float brain = float_of_bits(bits << 16);
    CHECK(brain_of_float(brain) == (brain != brain ? 0x7FC0 : bits));
    if (nan || (bits & 0x7FFF) == 0x7C00) continue;
    const double exponent = (bits >> 10 & 31) == 0 ? 1 : static_cast<double>(bits >> 10 & 31);
    const double digits = (bits & 1023) + ((bits >> 10 & 31) == 0 ? 0.0 : 1024.0);
    const double size = std::ldexp(digits, static_cast<int>(exponent) - 25);
    CHECK(static_cast<double>(value) == ((bits & 0x8000) != 0 ? -size : size));
    // Between this half and the next: below, at, and above the middle.
    if ((bits & 0x7FFF) >= 0x7BFF || (bits & 0x8000) != 0) continue;
    const float next = float_of_half(bits + 1);
    const float middle = value + (next - value) / 2;
    CHECK(half_of_float(middle) == bits + (bits & 1));
    CHECK(half_of_float(std::nextafter(middle, 0.0f)) == bits);
    CHECK(half_of_float(std::nextafter(middle, 1e9f)) == bits + 1);
    CHECK(half_of_float(-std::nextafter(middle, 1e9f)) == bits + 1 + 0x8000);
  }
  CHECK(half_of_float(65519.996f) == 0x7BFF && half_of_float(65520.0f) == 0x7C00);
  CHECK(half_of_float(3e38f) == 0x7C00 && half_of_float(-INFINITY) == 0xFC00);
  CHECK(half_of_float(1e-45f) == 0 && half_of_float(-0.0f) == 0x8000);
  CHECK(brain_of_float(3.4e38f) == 0x7F80 && brain_of_float(-1e-45f) == 0x8000);
  CHECK(bits_of_float(float_of_half(0xFE01)) == (kNaN | 0x80000000));
  CHECK(rounded_to<Number::f32>(-NAN) == kNaN);
}

void check_every_kernel(const Bytes& source) {
  check::promise("every dtype to every dtype, at every alignment", [&] {
    for (Number stored : kStored) {
      for (Number delivered : kDelivered) {
        for (std::size_t channels : {1, 2, 3, 4, 5}) {
          for (bool planar : {false, true}) {
            for (bool normalise : {false, true}) {
              PixelSpec spec = converting(stored, delivered, channels, normalise);
              spec.planar = planar;
              const PixelPlan plan(spec);
              const std::string what =
                  std::to_string(static_cast<int>(stored)) + " to " +
                  std::to_string(static_cast<int>(delivered)) + ", " + std::to_string(channels) +
                  " channels" + (planar ? ", planar" : "") + (normalise ? ", normalised" : "");
              check_images(plan, 5, 37, {{0, 0, false}, {0, 0, true}}, source, channels, 0, what);
              check_images(plan, 1, 67, {{0, 0, true}, {0, 0, false}}, source, 1, 1 + channels,
                           what);
            }
          }
        }
      }
    }
  });
  check::promise("windows at every corner, inside and outside, of numbers of any size", [&] {
    for (std::int64_t item : {1, 2, 4, 8}) {
      for (std::int64_t channels : {1, 2, 3, 4}) {
        for (bool planar : {false, true}) {
          PixelSpec spec{item, channels, planar};
          spec.crop = RandomCrop{7, 9, 20, 20, 20, 20};
          const PixelPlan plan(spec);
          for (std::int32_t beyond : {0, 1, 3, 9, 20}) {
            check_images(plan, 11, 13, corners(11, 13, 7, 9, beyond), source, 3, 5, "window");
          }
          spec.crop = RandomCrop{13, 11, 8, 8, 8, 8};
          check_images(PixelPlan(spec), 6, 5, corners(6, 5, 13, 11, 8), source, 3, 5, "wider");
          spec.crop = RandomCrop{6, 5};
          check_images(PixelPlan(spec), 9, 5, corners(9, 5, 6, 5, 0), source, 3, 5, "whole rows");
          spec.crop = RandomCrop{2, 2, 1, 1, 1, 1};
          check_images(PixelPlan(spec), 0, 0, {{-1, -1, true}, {-1, -1, false}}, source, 0, 0,
                       "only padding");
        }
      }
    }
  });
  check::promise("images of more pixels than a chunk, and batches that are streamed", [&] {
    for (std::size_t channels : {1, 3, 4}) {
      for (Number delivered : kDelivered) {
        for (bool planar : {false, true}) {
          PixelSpec spec = converting(Number::u8, delivered, channels, true);
          spec.planar = planar;
          const std::vector<ImageWindow> windows(5, {0, 0, false});
          check_images(PixelPlan(spec), 187, 211, windows, source, 5, 0, "large");
          check_images(PixelPlan(spec), 1, 2500, {{0, 0, true}}, source, 5, 4, "long row");
          spec.crop = RandomCrop{180, 190, 4, 4, 4, 4};
          check_images(PixelPlan(spec), 187, 211, corners(187, 211, 180, 190, 4), source, 5, 2,
                       "large windows");
        }
      }
    }
  });
}

}  // namespace

int main() {
  std::mt19937_64 random(3);
  Bytes source(1 << 20);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());

  check::promise("half floats and bfloat16 round as IEEE 754 says, all of them", check_bodies);
  for (const CopyKernel& kernel : copy_kernels()) {
    set_copy_kernel(kernel.name);
    check_every_kernel(source);
  }
  set_copy_kernel("auto");

  check::promise("draws are a function of seed, epoch, index and number, and evenly spread", [] {
    PixelSpec spec{1, 3};
    spec.crop = RandomCrop{28, 30, 4, 4, 4, 4, 0};
    spec.flip = RandomFlip{0.25, false, 1};
    const PixelPlan plan(spec);
    const ImageShape shape = plan.shape(32, 32);
    const PixelKeys keys = plan.keys(5, 2);
    constexpr int kCount = 100'000;
    std::vector<int> tops(13), lefts(11);
    int flips = 0;
    for (std::int64_t index = 0; index < kCount; ++index) {
      const ImageWindow window = plan.window(shape, keys, index);
      ++tops.at(static_cast<std::size_t>(window.top + 4));
      ++lefts.at(static_cast<std::size_t>(window.left + 4));
      flips += window.flip;
    }
    CHECK(std::abs(flips - kCount / 4) < 700);  // 5 standard deviations
    for (int count : tops) CHECK(std::abs(count - kCount / 13) < 430);
    for (int count : lefts) CHECK(std::abs(count - kCount / 11) < 460);
    const auto differ = [&](const PixelKeys& other) {
      int equal = 0;
      for (std::int64_t index = 0; index < 1000; ++index) {
        const ImageWindow a = plan.window(shape, keys, index);
        const ImageWindow b = plan.window(shape, other, index);
        equal += a.top == b.top && a.left == b.left;
      }
      return equal < 30;  // 7 of them by chance
    };
    CHECK(differ(plan.keys(6, 2)) && differ(plan.keys(5, 3)) && !differ(plan.keys(5, 2)));
    spec.flip = RandomFlip{0, false, 1};
    CHECK(!PixelPlan(spec).window(shape, keys, 3).flip);
    spec.flip = RandomFlip{1, true, 1};
    const PixelPlan mirrored(spec);
    for (std::int64_t index = 0; index < 100; ++index) {
      const ImageWindow window = plan.window(shape, keys, index);
      const ImageWindow other = mirrored.window(shape, keys, index);
      CHECK(other.flip && other.top == window.top && other.left == 32 - 30 - window.left);
    }
  });
  check::promise("the draws of checkpoints never change", [] {
    PixelSpec spec{1, 1};
    spec.crop = RandomCrop{1000, 1000};
    spec.flip = RandomFlip{0.5, false, 1};
    const PixelPlan plan(spec);
    const ImageShape shape = plan.shape(2000, 3000);
    std::string drawn;
    for (std::int64_t index : {0, 1, 1'000'000'007}) {
      const ImageWindow window = plan.window(shape, plan.keys(7, 1), index);
      drawn += std::to_string(window.top) + "," + std::to_string(window.left) + "," +
               std::to_string(window.flip) + ";";
    }
    if (drawn != "507,1948,1;137,1942,0;392,777,1;") check::fail(__FILE__, __LINE__, drawn);
  });

  check::promise("what cannot be done is refused", [] {
    check_refused({3, 1});
    check_refused({1, 0});
    PixelSpec spec{1, 3};
    spec.crop = RandomCrop{0, 4};
    check_refused(spec);
    spec.crop = RandomCrop{4, 4, -1};
    check_refused(spec);
    spec.crop.reset();
    spec.flip = RandomFlip{1.5};
    check_refused(spec);
    spec = converting(Number::u8, Number::u8, 3, true);
    check_refused(spec);
    spec = converting(Number::u16, Number::f32, 3, true);
    spec.item_bytes = 1;
    check_refused(spec);
    for (float bad : {0.0f, INFINITY, NAN}) {
      spec = converting(Number::u8, Number::f32, 3, true);
      spec.conversion->stds[1] = bad;
      check_refused(spec);
    }
    spec = converting(Number::u8, Number::f32, 3, true);
    spec.channels = 4;
    check_refused(spec);
    spec = PixelSpec{1, 3};
    spec.crop = RandomCrop{5, 5, 1, 0, 1, 0};
    const PixelPlan plan(spec);
    CHECK(plan.shape(5, 3).out_width == 5);
    for (auto [height, width] : {std::pair{4, 9}, {9, 2}, {-1, 9}, {1 << 16, 1 << 16}}) {
      CHECK_THROWS(std::invalid_argument, plan.shape(height, width));
    }
  });
}
