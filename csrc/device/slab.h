// Page-locked memory, one large piece at a time.
#pragma once

#include <cstddef>

#include "device/cuda_device.h"

namespace fastload {

struct Slab {
  std::byte* data;
  std::size_t bytes;
  bool mapped;  // and registered; else it is memory of the driver's own
};

// At least `bytes` bytes. They are mapped, given pages on the GPU's NUMA node, kept from forked
// children and registered; where that is refused, the driver is asked for memory of its own. Throws
// CudaError, which says what was refused; the device is still usable unless it was a sticky error.
Slab pin(const CudaDevice& device, std::size_t bytes);

// Gives it back. What the driver does not let go stays.
// REQUIRES: inside a Scope, and no copy from it is running.
void unpin(const CudaDevice& device, const Slab& slab) noexcept;

}  // namespace fastload
