#include "batch/pixels.h"

#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/exit.h"
#include "device/pixel_launch.h"

namespace fastload::bindings {
namespace {

using ConversionArgument =
    std::tuple<std::string, std::string, bool, double, std::vector<double>, std::vector<double>>;
using CropArgument =
    std::tuple<std::pair<std::int64_t, std::int64_t>,
               std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>, std::uint64_t>;
using FlipArgument = std::tuple<double, bool, std::uint64_t>;

Number number_named(const std::string& name) {
  constexpr std::pair<const char*, Number> kNames[] = {
      {"bool", Number::boolean},  {"uint8", Number::u8},    {"int8", Number::i8},
      {"uint16", Number::u16},    {"int16", Number::i16},   {"float16", Number::f16},
      {"bfloat16", Number::bf16}, {"float32", Number::f32},
  };
  for (const auto& [known, number] : kNames) {
    if (name == known) return number;
  }
  throw py::value_error(
      "the dtype of a conversion must be one of bool, uint8, int8, uint16, int16, float16, "
      "bfloat16 and float32, got '" +
      name + "'");
}

std::vector<float> rounded(const std::vector<double>& numbers) {
  std::vector<float> floats;
  for (double number : numbers) floats.push_back(static_cast<float>(number));
  return floats;
}

std::shared_ptr<PixelPlan> make_plan(std::int64_t item_bytes, std::int64_t channels, bool planar,
                                     const std::optional<ConversionArgument>& conversion,
                                     const std::optional<CropArgument>& crop,
                                     const std::optional<FlipArgument>& flip) {
  PixelSpec spec{item_bytes, channels, planar};
  if (conversion) {
    const auto& [stored, delivered, normalise, scale, means, stds] = *conversion;
    spec.conversion = Conversion{number_named(stored),      number_named(delivered), normalise,
                                 static_cast<float>(scale), rounded(means),          rounded(stds)};
  }
  if (crop) {
    const auto& [size, padding, number] = *crop;
    const auto [left, top, right, bottom] = padding;
    spec.crop = RandomCrop{size.first, size.second, left, top, right, bottom, number};
  }
  if (flip) {
    const auto& [probability, before_crop, number] = *flip;
    spec.flip = RandomFlip{probability, before_crop, number};
  }
  return std::make_shared<PixelPlan>(std::move(spec));
}

void check_contiguous(const py::array& array, std::int64_t bytes, const char* what) {
  if ((array.flags() & py::array::c_style) == 0 || array.nbytes() != bytes) {
    throw py::value_error(std::string(what) + " must be C-contiguous and of " +
                          std::to_string(bytes) + " bytes, got " + std::to_string(array.nbytes()));
  }
}

// Delivers one image.
void deliver(const PixelPlan& plan, const py::array& image, const py::array& out,
             std::uint64_t seed, std::uint64_t epoch, std::int64_t draw) {
  if (image.ndim() != 3 || image.shape(2) != plan.spec().channels) {
    throw py::value_error("the shape of an image must be (height, width, " +
                          std::to_string(plan.spec().channels) + "), got " +
                          py::str(image.attr("shape")).cast<std::string>());
  }
  const ImageShape shape = plan.shape(image.shape(0), image.shape(1));
  check_contiguous(image, plan.stored_bytes(shape), "the image");
  check_contiguous(out, plan.delivered_bytes(shape), "out");
  if (!out.writeable()) throw py::value_error("out must be writable, got a read-only array");
  const auto* const from = static_cast<const std::byte*>(image.data());
  auto* const to = static_cast<std::byte*>(const_cast<void*>(out.data()));
  const ImageWindow window = plan.window(shape, plan.keys(seed, epoch), draw);
  std::vector<std::byte> scratch(plan.scratch_bytes(shape));
  const Unlocked unlocked;
  deliver_images(plan, shape, &from, {&window, 1}, to, scratch.data());
}

}  // namespace

void register_pixels(py::module_& module) {
  using namespace py::literals;
  py::class_<PixelPlan, std::shared_ptr<PixelPlan>>(module, "PixelPlan",
                                                    "How the images of a field are delivered.")
      .def(py::init(&make_plan), py::kw_only(), "item_bytes"_a, "channels"_a = 1,
           "planar"_a = false, "conversion"_a = py::none(), "crop"_a = py::none(),
           "flip"_a = py::none())
      .def(
          "out_size",
          [](const PixelPlan& self, std::int64_t height, std::int64_t width) {
            const ImageShape shape = self.shape(height, width);
            return std::pair(shape.out_height, shape.out_width);
          },
          "height"_a, "width"_a)
      .def(
          "window",
          [](const PixelPlan& self, std::int64_t height, std::int64_t width, std::uint64_t seed,
             std::uint64_t epoch, std::int64_t draw) {
            const ImageWindow window =
                self.window(self.shape(height, width), self.keys(seed, epoch), draw);
            return std::tuple(window.top, window.left, window.flip);
          },
          "Window of one sample in its stored image: top, left, and whether it is mirrored.",
          "height"_a, "width"_a, "seed"_a, "epoch"_a, "draw"_a)
      .def_property_readonly("has_kernel", &has_kernel, "Whether a GPU can do it.")
      .def(
          "raw_bytes",
          [](const PixelPlan& self, std::int64_t height, std::int64_t width, std::int64_t count) {
            const std::shared_ptr<const PixelPlan> unowned(std::shared_ptr<void>(), &self);
            if (count < 0)
              throw py::value_error("count must not be negative, got " + std::to_string(count));
            return raw_bytes({unowned, self.shape(height, width), {}},
                             static_cast<std::size_t>(count));
          },
          "Bytes on a GPU for the stored images of a batch and their windows.", "height"_a,
          "width"_a, "count"_a)
      .def("deliver", &deliver, "image"_a, "out"_a, "seed"_a, "epoch"_a, "draw"_a);
}

}  // namespace fastload::bindings
