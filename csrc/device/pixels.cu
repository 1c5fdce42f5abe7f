// The kernels. make_ptx.py compiles them to pixels.ptx.
#include "device/pixel_kernel.h"

using namespace fastload;

#define FASTLOAD_KERNEL(name, ...)                                                            \
  extern "C" __global__ void __launch_bounds__(kPixelThreads)                                 \
      name(const __grid_constant__ PixelArguments arguments) {                                \
    deliver_pixels<__VA_ARGS__>(arguments, {blockIdx.x, threadIdx.x, blockIdx.y, gridDim.y}); \
  }
FASTLOAD_PIXEL_KERNELS(FASTLOAD_KERNEL)
