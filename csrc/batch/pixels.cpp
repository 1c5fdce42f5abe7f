#include "batch/pixels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/hash.h"
#include "batch/copy.h"
#include "batch/pixel_kernels.h"
#include "batch/stream.h"

namespace fastload {
namespace {

constexpr std::int64_t kMaxNumbers =
    (std::int64_t{1} << 31) - 1;  // of a sample: kernels count in int32
// Numbers of a pattern, at least: enough for the vectors of an inner loop.
constexpr std::size_t kPattern = 64;
// Tables of results are made for up to this many channels: images have no more, and a table of
// float32 takes 1 KiB a channel.
constexpr std::size_t kTableChannels = 16;
// Pixels that are split into planes and then converted: 3 channels of 4 bytes are 12 KiB, which
// stay in the first cache.
constexpr std::int64_t kChunkPixels = 1024;
// Batches below this size are written by ordinary stores, since they stay in the second cache
// until they are used.
constexpr std::size_t kCachedBytes = 1 << 20;

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

template <class Value>
void require(bool holds, const std::string& rule, Value given) {
  if (!holds) throw std::invalid_argument(rule + ", got " + std::to_string(given));
}

std::string pair_text(std::int64_t height, std::int64_t width) {
  return std::string("(")
             .append(std::to_string(height))
             .append(", ")
             .append(std::to_string(width)) +
         ")";
}

// Returns a number of [0, count) from uniform bits.
std::int64_t below(std::uint64_t bits, std::int64_t count) {
  return static_cast<std::int64_t>(
      (static_cast<unsigned __int128>(bits) * static_cast<unsigned __int128>(count)) >> 64);
}

std::uint64_t bits_of(std::uint64_t key, std::int64_t draw, std::uint64_t number) {
  return mix(mix(key + kGolden * (static_cast<std::uint64_t>(draw) + 1)) + kGolden * (number + 1));
}

bool is_byte(Number number) {
  return number == Number::u8 || number == Number::i8 || number == Number::boolean;
}

std::size_t index_of(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

PixelPlan::PixelPlan(PixelSpec spec) : spec_(std::move(spec)) {
  check();
  if (spec_.conversion) build_tables();
}

void PixelPlan::check() const {
  const std::int64_t item = spec_.item_bytes;
  require(item == 1 || item == 2 || item == 4 || item == 8, "item_bytes must be 1, 2, 4 or 8",
          item);
  require(spec_.channels >= 1 && spec_.channels <= kMaxNumbers, "channels must lie in [1, 2^31)",
          spec_.channels);
  if (spec_.crop) {
    const RandomCrop& crop = *spec_.crop;
    require(crop.height >= 1 && crop.width >= 1,
            "the size of a crop must be positive, got " + pair_text(crop.height, crop.width));
    for (std::int64_t side :
         {crop.height, crop.width, crop.left, crop.top, crop.right, crop.bottom}) {
      require(side >= 0 && side <= kMaxNumbers / 4,
              "sizes and padding of a crop must lie in [0, 2^29)", side);
    }
  }
  if (spec_.flip) {
    const double p = spec_.flip->probability;
    require(p >= 0 && p <= 1, "the probability of a flip must lie in [0, 1]", p);
  }
  if (!spec_.conversion) return;
  const Conversion& c = *spec_.conversion;
  require(c.delivered == Number::f32 || c.delivered == Number::f16 || c.delivered == Number::bf16,
          "converted numbers must be delivered as float32, float16 or bfloat16");
  require(item == number_bytes(c.stored),
          "item_bytes must be the size of the dtype, " + std::to_string(number_bytes(c.stored)),
          item);
  require(c.means.size() == c.stds.size(),
          "there must be as many means as standard deviations, got " +
              std::to_string(c.means.size()) + " and " + std::to_string(c.stds.size()));
  require(
      c.means.size() == 1 || std::cmp_equal(c.means.size(), spec_.channels),
      "there must be one mean, or one for each of " + std::to_string(spec_.channels) + " channels",
      c.means.size());
  require(std::isfinite(c.scale), "scale must be finite", c.scale);
  for (float mean : c.means) require(std::isfinite(mean), "means must be finite", mean);
  for (float std : c.stds) {
    require(std::isfinite(std) && std != 0, "standard deviations must be finite and not 0", std);
  }
}

void PixelPlan::build_tables() {
  const Conversion& c = *spec_.conversion;
  const std::size_t count = c.means.size();
  tables_.per_channel = count > 1 && spec_.planar;
  const std::size_t inner = count > 1 && !spec_.planar ? count : 1;
  tables_.pattern = (kPattern + inner - 1) / inner * inner;
  const std::size_t patterns = tables_.per_channel ? count : 1;
  for (std::size_t i = 0; i < patterns * tables_.pattern; ++i) {
    const std::size_t channel = tables_.per_channel ? i / tables_.pattern : i % inner;
    tables_.means.push_back(c.means[channel]);
    tables_.stds.push_back(c.stds[channel]);
  }
  if (!is_byte(c.stored) || inner > 1 || patterns > kTableChannels) return;
  std::byte bytes[256];
  for (std::size_t i = 0; i < 256; ++i) bytes[i] = static_cast<std::byte>(i);
  const auto word = static_cast<std::size_t>(number_bytes(c.delivered));
  tables_.words.resize(patterns * 256 * word);
  const ConvertNumbers convert =
      pixel_kernels_portable().convert_of(c.stored, c.delivered, c.normalise);
  for (std::size_t p = 0; p < patterns; ++p) {
    const float* means = tables_.means.data() + p * tables_.pattern;
    const float* stds = tables_.stds.data() + p * tables_.pattern;
    convert(bytes, tables_.words.data() + p * 256 * word, 256,
            {means, stds, tables_.pattern, c.scale});
  }
  for (std::size_t p = 0; p < patterns; ++p) {
    for (std::size_t b = 0; b < word; ++b) {
      for (std::size_t i = 0; i < 256; ++i) {
        tables_.split.push_back(tables_.words[(p * 256 + i) * word + b]);
      }
    }
  }
}

std::int64_t PixelPlan::delivered_item_bytes() const {
  return spec_.conversion ? number_bytes(spec_.conversion->delivered) : spec_.item_bytes;
}

ImageShape PixelPlan::shape(std::int64_t height, std::int64_t width) const {
  require(height >= 0 && width >= 0,
          "the size of an image must not be negative, got " + pair_text(height, width));
  const auto fits = [&](std::int64_t a, std::int64_t b) {
    return checked_mul(checked_mul(a, b), spec_.channels) <= kMaxNumbers;
  };
  require(
      std::max(height, width) <= kMaxNumbers / 4 && fits(height, width),
      "a sample must have fewer than 2^31 numbers, got an image of " + pair_text(height, width));
  std::int64_t out_height = height;
  std::int64_t out_width = width;
  if (spec_.crop) {
    const RandomCrop& crop = *spec_.crop;
    const std::int64_t rows = height + crop.top + crop.bottom;
    const std::int64_t columns = width + crop.left + crop.right;
    require(crop.height <= rows && crop.width <= columns,
            "a window of " + pair_text(crop.height, crop.width) + " is larger than the image, " +
                pair_text(rows, columns) + " with its padding");
    out_height = crop.height;
    out_width = crop.width;
    require(fits(out_height, out_width),
            "a sample must have fewer than 2^31 numbers, got a window of " +
                pair_text(out_height, out_width));
  }
  const auto narrow = [](std::int64_t side) { return static_cast<std::int32_t>(side); };
  return {narrow(height),     narrow(width),     narrow(spec_.channels),
          narrow(out_height), narrow(out_width), spec_.planar};
}

std::int64_t PixelPlan::stored_bytes(const ImageShape& shape) const {
  return std::int64_t{shape.height} * shape.width * shape.channels * spec_.item_bytes;
}

std::int64_t PixelPlan::delivered_bytes(const ImageShape& shape) const {
  return std::int64_t{shape.out_height} * shape.out_width * shape.channels * delivered_item_bytes();
}

PixelKeys PixelPlan::keys(std::uint64_t seed, std::uint64_t epoch) const {
  PixelKeys keys;
  if (spec_.crop) keys.crop = hash_key(seed, epoch, ~spec_.crop->number);
  if (spec_.flip) keys.flip = hash_key(seed, epoch, ~spec_.flip->number);
  return keys;
}

ImageWindow PixelPlan::window(const ImageShape& shape, const PixelKeys& keys,
                              std::int64_t draw) const {
  ImageWindow window{0, 0, false};
  if (spec_.flip) {
    const auto uniform = static_cast<double>(bits_of(keys.flip, draw, 0) >> 11) * 0x1p-53;
    window.flip = uniform < spec_.flip->probability;
  }
  if (!spec_.crop) return window;
  const RandomCrop& crop = *spec_.crop;
  const std::int64_t rows = shape.height + crop.top + crop.bottom - crop.height;
  const std::int64_t columns = shape.width + crop.left + crop.right - crop.width;
  const std::int64_t top = below(bits_of(keys.crop, draw, 0), rows + 1) - crop.top;
  std::int64_t left = below(bits_of(keys.crop, draw, 1), columns + 1) - crop.left;
  // The window was chosen in the mirrored image.
  if (window.flip && spec_.flip->before_crop) left = shape.width - shape.out_width - left;
  window.top = static_cast<std::int32_t>(top);
  window.left = static_cast<std::int32_t>(left);
  return window;
}

std::size_t PixelPlan::scratch_bytes(const ImageShape& shape) const {
  const std::int64_t pixels = std::max<std::int64_t>(kChunkPixels, shape.out_width);
  return index_of(pixels * spec_.channels * spec_.item_bytes);
}

namespace {

// Delivers one image after the other.
class Delivering {
 public:
  Delivering(const PixelPlan& plan, const ImageShape& shape, std::byte* scratch, bool stream)
      : kernels_(copy_kernel().pixels),
        plan_(plan),
        shape_(shape),
        scratch_(scratch),
        stream_(stream),
        item_(index_of(plan.spec().item_bytes)),
        out_item_(index_of(plan.delivered_item_bytes())),
        channels_(index_of(shape.channels)),
        planar_(shape.planar && shape.channels > 1) {
    if (!plan.spec().conversion) return;
    const Conversion& c = *plan.spec().conversion;
    convert_ = kernels_.convert_of(c.stored, c.delivered, c.normalise);
  }

  void image(const std::byte* in, const ImageWindow& window, std::byte* out) const {
    const std::int64_t out_pixels = std::int64_t{shape_.out_height} * shape_.out_width;
    const bool inside = window.top >= 0 && window.top + shape_.out_height <= shape_.height;
    if (inside && window.left == 0 && shape_.out_width == shape_.width && !window.flip) {
      // Its rows are contiguous, so they are copied as one.
      in += index_of(window.top) * index_of(shape_.width) * channels_ * item_;
      if (!planar_) return numbers(in, out, index_of(out_pixels) * channels_, 0);
      for (std::int64_t first = 0; first < out_pixels; first += kChunkPixels) {
        const auto count = index_of(std::min(kChunkPixels, out_pixels - first));
        kernels_.split(item_, channels_, false)(in + index_of(first) * channels_ * item_, scratch_,
                                                count, count, channels_);
        chunk(index_of(first), count, out);
      }
      return;
    }
    const std::int64_t rows =
        std::max<std::int64_t>(1, kChunkPixels / std::max(1, shape_.out_width));
    for (std::int64_t first = 0; first < shape_.out_height; first += rows) {
      const std::int64_t count = std::min(rows, shape_.out_height - first);
      const auto pixels = index_of(count * shape_.out_width);
      for (std::int64_t row = 0; row < count; ++row) {
        const std::size_t at = index_of(row * shape_.out_width) * item_;
        window_row(in, window, first + row, scratch_ + at * (planar_ ? 1 : channels_), pixels);
      }
      chunk(index_of(first * shape_.out_width), pixels, out);
    }
  }

 private:
  // Row `y` of the window to the scratch: pixel by pixel, or cut into planes of `plane` numbers.
  void window_row(const std::byte* in, const ImageWindow& window, std::int64_t y, std::byte* row,
                  std::size_t plane) const {
    const std::size_t pixel_bytes = channels_ * item_;
    const std::int64_t source = window.top + y;
    const std::int64_t begin = std::clamp<std::int64_t>(window.left, 0, shape_.width);
    const std::int64_t end =
        std::clamp<std::int64_t>(std::int64_t{window.left} + shape_.out_width, begin, shape_.width);
    const bool empty = source < 0 || source >= shape_.height || begin == end;
    const auto width = index_of(shape_.out_width);
    const std::size_t count = empty ? 0 : index_of(end - begin);
    if (count < width) {  // zeros to the left and right of the image
      const std::size_t parts = planar_ ? channels_ : 1;
      const std::size_t bytes = width * pixel_bytes / parts;
      for (std::size_t part = 0; part < parts; ++part) {
        std::memset(row + part * plane * item_, 0, bytes);
      }
    }
    if (count == 0) return;
    const std::size_t before =
        window.flip ? width - index_of(end - window.left) : index_of(begin - window.left);
    in += (index_of(source) * index_of(shape_.width) + index_of(begin)) * pixel_bytes;
    row += before * (planar_ ? item_ : pixel_bytes);
    if (planar_) {
      kernels_.split(item_, channels_, window.flip)(in, row, plane, count, channels_);
    } else if (window.flip) {
      kernels_.mirror(item_, channels_)(in, row, count, channels_);
    } else {
      std::memcpy(row, in, count * pixel_bytes);
    }
  }

  // Converts the scratch: pixels from number `first` of the delivered image on.
  void chunk(std::size_t first, std::size_t pixels, std::byte* out) const {
    if (!planar_) {
      return numbers(scratch_, out + first * channels_ * out_item_, pixels * channels_, 0);
    }
    const std::size_t plane = index_of(shape_.out_height) * index_of(shape_.out_width);
    for (std::size_t c = 0; c < channels_; ++c) {
      numbers(scratch_ + c * pixels * item_, out + (c * plane + first) * out_item_, pixels, c);
    }
  }

  void numbers(const std::byte* in, std::byte* out, std::size_t count, std::size_t channel) const {
    if (convert_ == nullptr) {
      std::memcpy(out, in, count * item_);
      return;
    }
    const ConversionTables& tables = plan_.tables();
    const std::size_t pattern = tables.per_channel ? channel : 0;
    const LookUp look_up = kernels_.look_up_of(out_item_);
    if (!tables.words.empty() && look_up != nullptr) {
      const std::size_t table = pattern * 256 * out_item_;
      return look_up(in, out, count, tables.words.data() + table, tables.split.data() + table,
                     stream_);
    }
    const std::size_t at = pattern * tables.pattern;
    convert_(in, out, count,
             {tables.means.data() + at, tables.stds.data() + at, tables.pattern,
              plan_.spec().conversion->scale});
  }

  const PixelKernels& kernels_;
  const PixelPlan& plan_;
  const ImageShape& shape_;
  std::byte* const scratch_;
  const bool stream_;
  const std::size_t item_, out_item_, channels_;
  const bool planar_;
  ConvertNumbers convert_ = nullptr;
};

}  // namespace

void deliver_images(const PixelPlan& plan, const ImageShape& shape, const std::byte* const* images,
                    std::span<const ImageWindow> windows, std::byte* out, std::byte* scratch) {
  const auto in_bytes = index_of(plan.stored_bytes(shape));
  const auto out_bytes = index_of(plan.delivered_bytes(shape));
  const bool stream = out_bytes * windows.size() >= kCachedBytes;
  const Delivering delivering(plan, shape, scratch, stream);
  const std::size_t ahead = in_bytes < 64 * kLine ? kRowsAhead : 1;
  for (std::size_t i = 0; i < windows.size(); ++i, out += out_bytes) {
    if (i + ahead < windows.size()) prefetch_row(images[i + ahead], in_bytes);
    delivering.image(images[i], windows[i], out);
  }
  copy_kernel().pixels.fence();
}

}  // namespace fastload
