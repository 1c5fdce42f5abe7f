// What becomes of the numbers of a field on their way into a batch: windows of images, mirrored,
// scaled, of another dtype, with the channels first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "batch/pixel_body.h"

namespace fastload {

// Numbers change their dtype; or are scaled to 0..1 and normalised as well.
struct Conversion {
  Number stored = Number::u8;
  Number delivered = Number::f32;  // a float
  bool normalise = false;
  float scale = 1;
  // One for all numbers, or one for each channel.
  std::vector<float> means = {0};
  std::vector<float> stds = {1};
};

// A window of this size at a random place of the image, around which zeros are laid first.
struct RandomCrop {
  std::int64_t height = 0, width = 0;
  std::int64_t left = 0, top = 0, right = 0, bottom = 0;  // zeros
  std::uint64_t number = 0;                               // among the field's random transforms
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

// What the kernels read of a conversion.
struct ConversionTables {
  // Means and standard deviations for neighbouring numbers, over and over: of one channel after the
  // other if there is a pattern for each, else of a row of pixels.
  std::vector<float> means, stds;
  std::size_t pattern = 0;  // numbers of one
  bool per_channel = false;
  // Of 8-bit numbers: all 256 results for each pattern, and their first, second, ... bytes apart.
  std::vector<std::byte> words, split;
};

// The keys of the random transforms in one epoch.
struct PixelKeys {
  std::uint64_t crop = 0;
  std::uint64_t flip = 0;
};

// Immutable; may be used by any thread.
class PixelPlan {
 public:
  // Throws std::invalid_argument for what cannot be done.
  explicit PixelPlan(PixelSpec spec);

  const PixelSpec& spec() const { return spec_; }
  const ConversionTables& tables() const { return tables_; }
  bool random() const { return spec_.crop || spec_.flip; }
  std::int64_t delivered_item_bytes() const;
  // Of images of this size. Throws std::invalid_argument if it is too large, or smaller than the
  // window.
  ImageShape shape(std::int64_t height, std::int64_t width) const;
  std::int64_t stored_bytes(const ImageShape& shape) const;
  std::int64_t delivered_bytes(const ImageShape& shape) const;
  PixelKeys keys(std::uint64_t seed, std::uint64_t epoch) const;
  // A function of its arguments alone. `draw`: of the sample (IndexSpan).
  ImageWindow window(const ImageShape& shape, const PixelKeys& keys, std::int64_t draw) const;
  // What deliver_images() needs in each thread.
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

// Writes each image to `out`, side by side. REQUIRES: they do not overlap `out`. Touches nothing
// but its arguments, and may be left in the middle by a signal handler.
void deliver_images(const PixelPlan& plan, const ImageShape& shape, const std::byte* const* images,
                    std::span<const ImageWindow> windows, std::byte* out, std::byte* scratch);

}  // namespace fastload
