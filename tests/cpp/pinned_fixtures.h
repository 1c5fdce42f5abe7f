// Slots in pinned memory of the fake driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "check.h"
#include "device/cuda_device.h"
#include "device/pinned_memory.h"
#include "fake_cuda.h"

namespace pinned_fixtures {

using fastload::CudaDevice;
using fastload::DevicePointer;
using fastload::Driver;
using fastload::kFieldAlignment;
using fastload::MemoryLimits;
using fastload::PinnedMemory;

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

inline std::shared_ptr<CudaDevice> device() { return CudaDevice::get(0, FAKE_CUDA); }

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Part {
  std::byte* data;
  std::size_t bytes;
};

// Writes to all of it.
inline Part taken(PinnedMemory& memory, std::size_t bytes) {
  const Part part{memory.allocate(bytes), bytes};
  CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(part.data) % kFieldAlignment, 0);
  std::memset(part.data, 0x5A, bytes);
  return part;
}

inline void give(PinnedMemory& memory, const Part& part) { memory.release(part.data, part.bytes); }

// Whether a copy engine would read it by itself.
inline bool is_pinned(const Part& part) {
  const CudaDevice::Scope scope(*device());
  const Driver& driver = device()->driver();
  std::vector<std::byte> target(part.bytes);
  const auto pageable = fake_cuda_count("pageable");
  CHECK_EQUAL(driver.cuMemcpyHtoDAsync(reinterpret_cast<DevicePointer>(target.data()), part.data,
                                       part.bytes, nullptr),
              0);
  CHECK_EQUAL(driver.cuStreamSynchronize(nullptr), 0);
  return fake_cuda_count("pageable") == pageable;
}

inline std::function<MemoryLimits()> limits_of(std::size_t available, std::size_t cgroup) {
  return [=] {
    MemoryLimits limits;
    limits.available = available;
    limits.cgroup = cgroup;
    limits.memlock = 65536;
    return limits;
  };
}

inline const std::function<MemoryLimits()> kUnlimited =
    limits_of(MemoryLimits::kNone, MemoryLimits::kNone);

inline std::int64_t pinned_ranges() {
  return fake_cuda_count("registered") + fake_cuda_count("host_allocations");
}

}  // namespace pinned_fixtures
