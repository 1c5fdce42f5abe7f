#include "device/slab.h"

#include <sys/mman.h>

#include <new>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "batch/host_memory.h"
#include "device/numa.h"

namespace fastload {
namespace {

constexpr unsigned kPortable = 1;                        // pinned for every context
constexpr std::size_t kMaxPage = std::size_t{64} << 10;  // the largest page size of Linux

Slab registered(const CudaDevice& device, std::size_t bytes) {
  HostMemory memory;  // takes huge pages
  std::byte* data = nullptr;
  try {
    data = memory.allocate(bytes);
  } catch (const std::bad_alloc&) {
    throw CudaError("mmap: no memory is left");
  }
  try {
    if (!populate(data, bytes, device.numa_node())) {
      throw CudaError("madvise: no memory is left");
    }
    // Pinned pages cannot be copied on write: without this, fork() would copy all of them.
    madvise(data, bytes, MADV_DONTFORK);
    const CudaDevice::Scope scope(device);
    device.check(device.driver().cuMemHostRegister(data, bytes, kPortable), "cuMemHostRegister");
  } catch (...) {
    memory.release(data, bytes);
    throw;
  }
  return {data, bytes, true};
}

Slab allocated(const CudaDevice& device, std::size_t bytes) {
  void* data = nullptr;
  const CudaDevice::Scope scope(device);
  device.check(device.driver().cuMemHostAlloc(&data, bytes, kPortable), "cuMemHostAlloc");
  return {static_cast<std::byte*>(data), bytes, false};
}

}  // namespace

Slab pin(const CudaDevice& device, std::size_t bytes) {
  const std::size_t size = align_up(bytes, kMaxPage);
  std::string refused;
  try {
    return registered(device, size);
  } catch (const CudaError& error) {
    refused = error.what();
  }
  try {
    return allocated(device, size);
  } catch (const CudaError& error) {
    device.check_usable();
    throw CudaError(refused + "; " + error.what(), error.code());
  }
}

void unpin(const CudaDevice& device, const Slab& slab) noexcept {
  const Driver& driver = device.driver();
  if (!slab.mapped) {
    driver.cuMemFreeHost(slab.data);
  } else if (driver.cuMemHostUnregister(slab.data) == kCudaSuccess) {
    HostMemory().release(slab.data, slab.bytes);
  }
}

}  // namespace fastload
