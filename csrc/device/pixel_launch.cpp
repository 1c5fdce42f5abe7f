#include "device/pixel_launch.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/bytes.h"

namespace fastload {
namespace {

// The names of all kernels, in the order of pixel_kernel.h: kernel_number() is the position.
constexpr const char* kKernels[] = {
#define FASTLOAD_NAME(name, ...) #name,
    FASTLOAD_PIXEL_KERNELS(FASTLOAD_NAME)
#undef FASTLOAD_NAME
};
constexpr int kDeliveredTypes = 3;  // half floats, bfloat16 and floats
constexpr int kCopies = 8 * kDeliveredTypes;
static_assert(std::size(kKernels) == kCopies + 4);

constexpr std::uint32_t kMaxBlocks = 65535;  // along y; CUDA's limit
constexpr std::int64_t kMaxNumbers = std::numeric_limits<std::int32_t>::max();

int kernel_number(const PixelSpec& spec) {
  if (!spec.conversion) {
    return kCopies + std::countr_zero(static_cast<std::uint64_t>(spec.item_bytes));
  }
  const int delivered =
      static_cast<int>(spec.conversion->delivered) - static_cast<int>(Number::f16);
  return static_cast<int>(spec.conversion->stored) * kDeliveredTypes + delivered;
}

const char* kernel_name(const PixelPlan& plan) {
  if (!has_kernel(plan)) {
    throw std::invalid_argument("a GPU can normalise at most " +
                                std::to_string(kMaxPixelConstants) + " channels, got " +
                                std::to_string(plan.spec().conversion->means.size()));
  }
  return kKernels[kernel_number(plan.spec())];
}

// Images whose pixels keep their order are delivered as one image with one long row.
void join_images(ImageShape& shape, std::size_t& count, const PixelPlan& plan) {
  const bool moves = plan.random() || (shape.planar && shape.channels > 1);
  const std::int64_t pixels = std::int64_t{shape.height} * shape.width;
  if (moves || pixels == 0) return;
  if (count > static_cast<std::size_t>(kMaxNumbers / (pixels * shape.channels))) return;
  const auto width = static_cast<std::int32_t>(static_cast<std::int64_t>(count) * pixels);
  shape = {1, width, shape.channels, 1, width, false};
  count = 1;
}

}  // namespace

bool has_kernel(const PixelPlan& plan) {
  const auto& conversion = plan.spec().conversion;
  return !conversion || conversion->means.size() <= kMaxPixelConstants;
}

void load_kernel(CudaDevice& device, const PixelPlan& plan) {
  device.kernel(kPixelPtx, kernel_name(plan));
}

std::size_t window_offset(const ImageDelivery& images, std::size_t count) {
  return align_up(static_cast<std::size_t>(images.stored_bytes()) * count, kFieldAlignment);
}

std::size_t raw_bytes(const ImageDelivery& images, std::size_t count) {
  if (!images.plan->random()) return static_cast<std::size_t>(images.stored_bytes()) * count;
  return window_offset(images, count) + sizeof(ImageWindow) * count;
}

PixelLaunch plan_launch(const ImageDelivery& images, std::size_t count, DevicePointer raw,
                        DevicePointer out) {
  const PixelPlan& plan = *images.plan;
  PixelLaunch launch{kernel_name(plan), 0, 0, {}};
  PixelArguments& a = launch.arguments;
  const std::size_t windows = window_offset(images, count);
  a.in = reinterpret_cast<const void*>(raw);
  a.out = reinterpret_cast<void*>(out);
  if (plan.random()) a.windows = reinterpret_cast<const ImageWindow*>(raw + windows);
  a.shape = images.shape;
  join_images(a.shape, count, plan);
  if (count > static_cast<std::size_t>(kMaxNumbers)) {
    throw std::invalid_argument("a batch on a GPU must have fewer than 2^31 samples, got " +
                                std::to_string(count));
  }
  a.images = static_cast<std::uint32_t>(count);
  a.constants = 1;
  if (plan.spec().conversion) {
    const Conversion& c = *plan.spec().conversion;
    a.constants = static_cast<std::uint32_t>(c.means.size());
    a.normalise = c.normalise;
    a.scale = c.scale;
    std::copy(c.means.begin(), c.means.end(), a.means);
    std::copy(c.stds.begin(), c.stds.end(), a.stds);
  }
  const auto pixels = static_cast<std::uint32_t>(a.shape.out_height) *
                      static_cast<std::uint32_t>(a.shape.out_width);
  launch.blocks_x = (pixels + kPixelsPerBlock - 1) / kPixelsPerBlock;
  launch.blocks_y = std::min(a.images, kMaxBlocks);
  return launch;
}

void launch_pixels(CudaDevice& device, CudaStream stream, const ImageDelivery& images,
                   std::size_t count, DevicePointer raw, DevicePointer out) {
  PixelLaunch launch = plan_launch(images, count, raw, out);
  if (launch.blocks_x == 0 || launch.blocks_y == 0) return;
  CudaFunction kernel = device.kernel(kPixelPtx, launch.kernel);
  void* arguments[] = {&launch.arguments};
  device.check(device.driver().cuLaunchKernel(kernel, launch.blocks_x, launch.blocks_y, 1,
                                              kPixelThreads, 1, 1, 0, stream, arguments, nullptr),
               "cuLaunchKernel");
}

}  // namespace fastload
