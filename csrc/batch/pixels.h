// Delivery of images: cropped, mirrored, converted, normalised, with the channels first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "batch/pixel_body.h"

namespace fastload {

// A change of dtype; with `normalise`, numbers are also scaled and normalised by mean and std.
struct Conversion {
  Number stored = Number::u8;
  Number delivered = Number::f32;  // a float
  bool normalise = false;
  float scale = 1;
  // One for all channels, or one for each.
  std::vector<float> means = {0};
  std::vector<float> stds = {1};
};

// A random window of this size, in the image padded by zeros.
struct RandomCrop {
  std::int64_t height = 0, width = 0;
  std::int64_t left = 0, top = 0, right = 0, bottom = 0;  // zeros
  std::uint64_t number = 0;  // of this transform among the random ones of the field
};

struct RandomFlip {
  double probability = 0.5;
  bool before_crop = false;
  std::uint64_t number = 0;
};

struct PixelSpec {
  std::int64_t item_bytes = 1;  // of a stored number
  std::int64_t channels = 1;
  bool planar = false;                     // channels are delivered first
  std::optional<Conversion> conversion{};  // none: numbers are copied
  std::optional<RandomCrop> crop{};
  std::optional<RandomFlip> flip{};
};

// A conversion in the form that kernels read.
struct ConversionTables {
  // Means and standard deviations of neighbouring numbers, repeated: one pattern for each channel
  // if per_channel, else one for rows of pixels.
  std::vector<float> means, stds;
  std::size_t pattern = 0;  // numbers of a pattern
  bool per_channel = false;
  // For 8-bit numbers: the 256 results of each pattern; and their first bytes, second bytes, ...
  std::vector<std::byte> words, split;
};

// The keys of the random transforms in one epoch.
struct PixelKeys {
  std::uint64_t crop = 0;
  std::uint64_t flip = 0;
};

// How the images of a field are delivered, for any size of image. Immutable. Thread-safe.
class PixelPlan {
 public:
  // Throws std::invalid_argument for numbers out of range and unsupported conversions.
  explicit PixelPlan(PixelSpec spec);

  const PixelSpec& spec() const { return spec_; }
  const ConversionTables& tables() const { return tables_; }
  bool random() const { return spec_.crop || spec_.flip; }
  std::int64_t delivered_item_bytes() const;
  // Returns the shapes for stored images of this size. Throws std::invalid_argument if it is
  // negative, has 2^31 numbers or more, or is smaller than the window.
  ImageShape shape(std::int64_t height, std::int64_t width) const;
  std::int64_t stored_bytes(const ImageShape& shape) const;
  std::int64_t delivered_bytes(const ImageShape& shape) const;
  PixelKeys keys(std::uint64_t seed, std::uint64_t epoch) const;
  // Returns the random window of a sample, a pure function of the arguments. `draw`: of the sample
  // (IndexSpan).
  ImageWindow window(const ImageShape& shape, const PixelKeys& keys, std::int64_t draw) const;
  // The scratch memory that deliver_images() needs in each thread.
  std::size_t scratch_bytes(const ImageShape& shape) const;

 private:
  void check() const;
  void build_tables();

  PixelSpec spec_;
  ConversionTables tables_;
};

// How the images of a field are delivered in one epoch.
struct ImageDelivery {
  std::shared_ptr<const PixelPlan> plan;
  ImageShape shape;
  PixelKeys keys;

  std::int64_t stored_bytes() const { return plan->stored_bytes(shape); }
  std::int64_t delivered_bytes() const { return plan->delivered_bytes(shape); }
  ImageWindow window(std::int64_t draw) const { return plan->window(shape, keys, draw); }
};

// Writes the images to `out`, contiguously. `scratch`: plan.scratch_bytes(shape) bytes. REQUIRES:
// the images do not overlap `out`. Thread-safe. Owns nothing, so that a signal handler may leave it
// in the middle.
void deliver_images(const PixelPlan& plan, const ImageShape& shape, const std::byte* const* images,
                    std::span<const ImageWindow> windows, std::byte* out, std::byte* scratch);

}  // namespace fastload
