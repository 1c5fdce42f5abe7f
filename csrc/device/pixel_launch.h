// Images that are delivered by the GPU itself: what deliver_images() does, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "batch/pixels.h"
#include "device/cuda_device.h"
#include "device/pixel_kernel.h"

namespace fastload {

// The text of all kernels, for every GPU.
extern const char kPixelPtx[];

// Whether there is a kernel for it; other plans stay on the CPU.
bool has_kernel(const PixelPlan& plan);
// Makes sure that the device's driver takes the kernel: the first call for a device loads all of
// them, which the driver compiles once for a machine. Throws CudaError, and std::invalid_argument
// if there is none. REQUIRES: inside a Scope.
void load_kernel(CudaDevice& device, const PixelPlan& plan);

// Where the windows of `count` images lie behind the stored images, and how much both take. The
// windows of a plan that draws nothing are neither copied nor read.
std::size_t window_offset(const ImageDelivery& images, std::size_t count);
std::size_t raw_bytes(const ImageDelivery& images, std::size_t count);

// Enqueues the delivery of `count` images that lie at `raw`, with their windows behind them, to
// `out`. Both are aligned to kFieldAlignment. Thread-safe. Throws as load_kernel(). REQUIRES:
// inside a Scope.
void launch_pixels(CudaDevice& device, CudaStream stream, const ImageDelivery& images,
                   std::size_t count, DevicePointer raw, DevicePointer out);

// What is launched for that; no blocks: nothing.
struct PixelLaunch {
  const char* kernel;
  std::uint32_t blocks_x, blocks_y;  // of kPixelThreads
  PixelArguments arguments;
};

// Throws std::invalid_argument without a kernel.
PixelLaunch plan_launch(const ImageDelivery& images, std::size_t count, DevicePointer raw,
                        DevicePointer out);

}  // namespace fastload
