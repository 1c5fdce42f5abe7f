// Allocates page-locked (pinned) memory in large slabs.
#pragma once

#include <cstddef>

#include "device/cuda_device.h"

namespace fastload {

struct Slab {
  std::byte* data;
  std::size_t bytes;
  bool mapped;  // mapped by us and registered; else allocated by the driver
};

// Pins at least `bytes` bytes: maps them, places them on the GPU's NUMA node, excludes them from
// forked children and registers them; if a step is refused, the driver allocates them instead.
// Throws CudaError with both reasons; the device is still usable unless the error was sticky.
// Thread-safe.
Slab pin(const CudaDevice& device, std::size_t bytes);

// Frees a slab. If the driver does not unregister it, it stays mapped.
// REQUIRES: inside a Scope, and no copy from it is running.
void unpin(const CudaDevice& device, const Slab& slab) noexcept;

}  // namespace fastload
