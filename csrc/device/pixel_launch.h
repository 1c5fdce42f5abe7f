// Kernels that deliver images on the GPU, with the same bits as deliver_images() on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "batch/pixels.h"
#include "device/cuda_device.h"
#include "device/pixel_kernel.h"

namespace fastload {

// The PTX of all kernels, for every GPU.
extern const char kPixelPtx[];

// Whether there is a kernel for a plan; images of other plans are delivered on the CPU.
bool has_kernel(const PixelPlan& plan);
// Loads the kernel of a plan, so that an error comes before any copy. The first call for a device
// loads all kernels, which the driver compiles once per machine. Throws CudaError if the driver
// refuses them, and std::invalid_argument if there is no kernel. REQUIRES: inside a Scope.
void load_kernel(CudaDevice& device, const PixelPlan& plan);

// The offset of the windows of `count` images, which follow the stored images, and the bytes of
// both. A plan without random transforms has no windows.
std::size_t window_offset(const ImageDelivery& images, std::size_t count);
std::size_t raw_bytes(const ImageDelivery& images, std::size_t count);

// Enqueues the delivery of `count` images from `raw`, where their windows follow them, to `out`.
// Thread-safe. Throws as load_kernel(). REQUIRES: inside a Scope; both addresses are aligned to
// kFieldAlignment.
void launch_pixels(CudaDevice& device, CudaStream stream, const ImageDelivery& images,
                   std::size_t count, DevicePointer raw, DevicePointer out);

// The launch that launch_pixels() makes; without blocks there is nothing to launch.
struct PixelLaunch {
  const char* kernel;
  std::uint32_t blocks_x, blocks_y;  // of kPixelThreads
  PixelArguments arguments;
};

// Throws std::invalid_argument if there is no kernel, or the batch has 2^31 samples or more.
PixelLaunch plan_launch(const ImageDelivery& images, std::size_t count, DevicePointer raw,
                        DevicePointer out);

}  // namespace fastload
