// The kernels of pixel_kernel.h as functions of the host, by the names under which a GPU has them.
#pragma once

#include <cstdint>
#include <string>

#include "device/pixel_kernel.h"

namespace fastload {

using HostPixelKernel = void (*)(const PixelArguments&, const PixelThread&);

// nullptr: there is none of that name.
inline HostPixelKernel host_pixel_kernel(const std::string& name) {
#define FASTLOAD_HOST_KERNEL(known, ...) \
  if (name == #known) return deliver_pixels<__VA_ARGS__>;
  FASTLOAD_PIXEL_KERNELS(FASTLOAD_HOST_KERNEL)
#undef FASTLOAD_HOST_KERNEL
  return nullptr;
}

// All threads of a grid, one after the other.
inline void run_grid(HostPixelKernel kernel, std::uint32_t blocks_x, std::uint32_t blocks_y,
                     std::uint32_t threads, const PixelArguments& arguments) {
  for (std::uint32_t y = 0; y < blocks_y; ++y) {
    for (std::uint32_t x = 0; x < blocks_x; ++x) {
      for (std::uint32_t t = 0; t < threads; ++t) kernel(arguments, {x, t, y, blocks_y});
    }
  }
}

}  // namespace fastload
