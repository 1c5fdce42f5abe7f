#include "device/pixel_launch.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "check.h"
#include "fake_cuda.h"
#include "host_pixel_kernels.h"

using namespace fastload;

namespace {

constexpr Number kStored[] = {Number::boolean, Number::u8,  Number::i8,   Number::u16,
                              Number::i16,     Number::f16, Number::bf16, Number::f32};
constexpr Number kDelivered[] = {Number::f16, Number::bf16, Number::f32};
constexpr std::byte kUntouched{0xA5};
constexpr std::size_t kCanary = 256;

using Bytes = std::vector<std::byte>;

std::size_t size_of(std::int64_t value) { return static_cast<std::size_t>(value); }

PixelSpec converting(Number stored, Number delivered, std::int64_t channels, bool normalise) {
  PixelSpec spec{number_bytes(stored), channels};
  Conversion conversion{stored, delivered, normalise, normalise ? 1.0f / 255 : 1.0f};
  for (std::int64_t c = 1; normalise && c < channels; ++c) {
    conversion.means.push_back(0.1f * static_cast<float>(c) - 0.3f);
    conversion.stds.push_back(0.7f / static_cast<float>(c));
  }
  spec.conversion = conversion;
  return spec;
}

// Memory of a GPU, aligned as its kernels need it, between bytes that nobody may touch.
class Memory {
 public:
  explicit Memory(std::size_t bytes)
      : bytes_(bytes), all_(bytes + 2 * kCanary + kFieldAlignment, kUntouched) {
    const auto begin = reinterpret_cast<std::uintptr_t>(all_.data()) + kCanary;
    data_ = all_.data() + (align_up(begin, kFieldAlignment) - begin) + kCanary;
  }
  std::byte* data() const { return data_; }
  DevicePointer pointer() const { return reinterpret_cast<DevicePointer>(data_); }
  void check_canaries(const std::string& what) const {
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    if (!std::all_of(all_.data(), static_cast<const std::byte*>(data_), untouched) ||
        !std::all_of(static_cast<const std::byte*>(data_ + bytes_), all_.data() + all_.size(),
                     untouched)) {
      check::fail(__FILE__, __LINE__, what + ": wrote outside");
    }
  }

 private:
  std::size_t bytes_;
  Bytes all_;
  std::byte* data_;
};

// The images at `raw`, by the CPU.
Bytes by_cpu(const ImageDelivery& images, const std::byte* raw,
             const std::vector<ImageWindow>& windows) {
  std::vector<const std::byte*> rows;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    rows.push_back(raw + i * size_of(images.stored_bytes()));
  }
  Bytes out(size_of(images.delivered_bytes()) * windows.size());
  Bytes scratch(images.plan->scratch_bytes(images.shape));
  deliver_images(*images.plan, images.shape, rows.data(), windows, out.data(), scratch.data());
  return out;
}

// A batch by the kernels and by the CPU.
void check_batch(const PixelSpec& spec, std::int64_t height, std::int64_t width, std::size_t count,
                 const Bytes& source, const std::string& what,
                 const std::vector<ImageWindow>& chosen = {}) {
  const auto plan = std::make_shared<const PixelPlan>(spec);
  const ImageDelivery images{plan, plan->shape(height, width), plan->keys(3, 1)};
  const std::size_t stored = size_of(images.stored_bytes());
  std::vector<ImageWindow> windows;
  Memory raw(raw_bytes(images, count));
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = (7919 * i + count) % (source.size() - stored);
    std::copy_n(source.data() + at, stored, raw.data() + i * stored);
    windows.push_back(chosen.empty() ? images.window(static_cast<std::int64_t>(i))
                                     : chosen[i % chosen.size()]);
    CHECK(plan->random() || (windows[i].top == 0 && windows[i].left == 0 && !windows[i].flip));
  }
  if (plan->random() && count > 0) {
    std::memcpy(raw.data() + window_offset(images, count), windows.data(),
                sizeof(ImageWindow) * count);
  }
  Memory out(size_of(images.delivered_bytes()) * count);
  const PixelLaunch launch = plan_launch(images, count, raw.pointer(), out.pointer());
  const HostPixelKernel kernel = host_pixel_kernel(launch.kernel);
  CHECK(kernel != nullptr);
  run_grid(kernel, launch.blocks_x, launch.blocks_y, kPixelThreads, launch.arguments);
  const Bytes wanted = by_cpu(images, raw.data(), windows);
  if (!std::equal(wanted.begin(), wanted.end(), out.data())) {
    check::fail(__FILE__, __LINE__, what);
  }
  out.check_canaries(what);
  raw.check_canaries(what);
}

void check_conversions(const Bytes& source) {
  for (Number stored : kStored) {
    for (Number delivered : kDelivered) {
      for (std::int64_t channels : {1, 2, 3, 4, 5, 64}) {
        for (bool normalise : {false, true}) {
          for (bool planar : {false, true}) {
            PixelSpec spec = converting(stored, delivered, channels, normalise);
            spec.planar = planar;
            const std::string what = std::to_string(static_cast<int>(stored)) + " to " +
                                     std::to_string(static_cast<int>(delivered)) + ", " +
                                     std::to_string(channels) + " channels" +
                                     (planar ? ", planar" : "") + (normalise ? ", normalised" : "");
            check_batch(spec, 5, 37, 3, source, what);
            spec.flip = RandomFlip{0.5};
            check_batch(spec, 5, 7, 9, source, what + ", mirrored");
            spec.crop = RandomCrop{4, 6, 1, 2, 3, 1, 1};
            check_batch(spec, 5, 7, 9, source, what + ", cut");
          }
        }
      }
    }
  }
}

void check_windows(const Bytes& source) {
  for (std::int64_t item : {1, 2, 4, 8}) {
    for (std::int64_t channels : {1, 3, 4, 70}) {
      for (bool planar : {false, true}) {
        PixelSpec spec{item, channels, planar};
        check_batch(spec, 6, 5, 4, source, "whole");
        spec.crop = RandomCrop{7, 9, 20, 20, 20, 20};
        std::vector<ImageWindow> windows;
        for (std::int32_t top : {-20, -3, 0, 2, 4, 24}) {
          for (std::int32_t left : {-20, -9, -1, 0, 3, 4, 13, 24}) {
            windows.push_back({top, left, false});
            windows.push_back({top, left, true});
          }
        }
        check_batch(spec, 11, 13, windows.size(), source, "windows", windows);
        spec.crop = RandomCrop{2, 2, 1, 1, 1, 1};
        check_batch(spec, 0, 0, 2, source, "only padding");
        spec.flip = RandomFlip{0.5, true};
        spec.crop = RandomCrop{9, 12};
        check_batch(spec, 11, 13, 40, source, "turned, then cut");
      }
    }
  }
}

}  // namespace

int main() {
  std::mt19937_64 random(5);
  Bytes source(1 << 20);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());

  check::promise("kernels deliver what the CPU delivers: every dtype to every dtype",
                 [&] { check_conversions(source); });
  check::promise("windows inside and outside, of numbers of any size",
                 [&] { check_windows(source); });
  check::promise("images of more pixels than a block, batches of none, of one and of many", [&] {
    for (std::int64_t channels : {1, 3}) {
      for (bool planar : {false, true}) {
        PixelSpec spec = converting(Number::u8, Number::bf16, channels, true);
        spec.planar = planar;
        for (std::int64_t width : {511, 512, 513, 1500}) {
          check_batch(spec, 1, width, 3, source, "a long row");
        }
        check_batch(spec, 187, 211, 2, source, "large");
        check_batch(spec, 1, 1, 70'000, source, "many");
        check_batch(spec, 4, 4, 0, source, "no image");
        check_batch(spec, 0, 4, 3, source, "no pixel");
        spec.flip = RandomFlip{0.5};
        check_batch(spec, 1, 2, 140'000, source, "many, mirrored");  // more than blocks along y
        check_batch(spec, 187, 211, 3, source, "large, mirrored");
        check_batch(spec, 4, 4, 0, source, "no image, mirrored");
      }
    }
  });
  check::promise("images that move nothing are one row; windows are read only where some are drawn",
                 [] {
                   PixelSpec spec = converting(Number::u8, Number::f32, 3, true);
                   const auto launch = [](const PixelSpec& given, std::size_t count) {
                     const auto plan = std::make_shared<const PixelPlan>(given);
                     return plan_launch({plan, plan->shape(1000, 1000), {}}, count, 512, 1024);
                   };
                   CHECK_EQUAL(launch(spec, 715).blocks_y, 1);
                   CHECK_EQUAL(launch(spec, 715).arguments.images, 1);
                   CHECK_EQUAL(launch(spec, 716).blocks_y, 716);  // 2^31 numbers
                   CHECK(launch(spec, 2).arguments.windows == nullptr);
                   spec.planar = true;
                   CHECK_EQUAL(launch(spec, 2).blocks_y, 2);
                   spec.flip = RandomFlip{};
                   CHECK(launch(spec, 2).arguments.windows != nullptr);
                 });
  check::promise("each kernel is in the text that the driver is given, with that argument", [] {
    const std::string text = kPixelPtx;
    const std::string bytes = "[" + std::to_string(sizeof(PixelArguments)) + "]\n)";
    int count = 0;
#define FASTLOAD_FIND(name, ...)                                                             \
  count += text.find(".visible .entry " #name "(\n\t.param .align 8 .b8 " #name "_param_0" + \
                     bytes) != std::string::npos;
    FASTLOAD_PIXEL_KERNELS(FASTLOAD_FIND)
#undef FASTLOAD_FIND
    CHECK_EQUAL(count, 28);
  });
  check::promise("the driver loads the text once, and is told again what it refused", [&source] {
    const auto device = CudaDevice::get(0, FAKE_CUDA);
    const CudaDevice::Scope scope(*device);
    const CudaStream side = device->take_side_stream()->handle();
    const auto plan =
        std::make_shared<const PixelPlan>(converting(Number::i16, Number::f32, 2, true));
    for (const char* call : {"cuModuleLoadData", "cuModuleGetFunction"}) {
      fake_cuda_fail(call, 1, 218, 1);
      const std::string refused = CHECK_THROWS(CudaError, load_kernel(*device, *plan));
      CHECK(refused.find(call) != std::string::npos);
    }
    load_kernel(*device, *plan);
    const ImageDelivery images{plan, plan->shape(20, 30), {}};
    constexpr std::size_t kCount = 3;
    Memory raw(raw_bytes(images, kCount));
    std::copy_n(source.data(), raw_bytes(images, kCount), raw.data());
    Memory out(size_of(images.delivered_bytes()) * kCount);
    launch_pixels(*device, side, images, kCount, raw.pointer(), out.pointer());
    launch_pixels(*device, side, images, 0, raw.pointer(), out.pointer());
    fake_cuda_fail("cuLaunchKernel", 1, 1, 1);
    CHECK_THROWS(CudaError,
                 launch_pixels(*device, side, images, kCount, raw.pointer(), out.pointer()));
    CHECK_EQUAL(fake_cuda_synchronize(side), 0);
    CHECK_EQUAL(fake_cuda_count("modules"), 1);
    CHECK_EQUAL(fake_cuda_calls("cuModuleGetFunction"), 2);
    CHECK_EQUAL(fake_cuda_count("launches"), 1);
    CHECK_EQUAL(fake_cuda_count("misuses"), 0);
    const Bytes wanted =
        by_cpu(images, raw.data(), std::vector<ImageWindow>(kCount, {0, 0, false}));
    CHECK(std::equal(wanted.begin(), wanted.end(), out.data()));
  });
  check::promise("more constants than fit a kernel's arguments are refused", [] {
    CHECK(has_kernel(PixelPlan(converting(Number::u8, Number::f32, 64, true))));
    const auto plan =
        std::make_shared<const PixelPlan>(converting(Number::u8, Number::f32, 65, true));
    CHECK(!has_kernel(*plan));
    CHECK_THROWS(std::invalid_argument, plan_launch({plan, plan->shape(2, 2), {}}, 1, 512, 1024));
  });
}
