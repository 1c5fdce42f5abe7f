// Pinned memory for slots: the copy engine of a GPU reads it without the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fork.h"
#include "base/memory_source.h"
#include "base/mutex.h"
#include "batch/host_memory.h"
#include "device/cuda_device.h"
#include "device/free_parts.h"
#include "device/memory_limits.h"
#include "device/slab.h"

namespace fastload {

// NOTE [Slabs]. Pinning takes milliseconds in the driver and stalls its other users. So memory is
// pinned in slabs (slab.h), and slots are parts of slabs: before a loader starts, it reserves one
// slab for all batches that it keeps in circulation. If the driver refuses, ordinary memory is
// used, which gives the same batches more slowly, and complaint() returns the reason. The same
// happens if slabs would exceed a quarter of the available memory or of the cgroup's limit: pinned
// memory cannot be swapped out, and the rest of the machine needs some.
//
// Thread-safe. Slabs live as long as this object. After a sticky error, and in a forked child, they
// are left to the end of the process.
class PinnedMemory final : public MemorySource {
 public:
  // `limits`: called before each slab is pinned.
  explicit PinnedMemory(
      std::shared_ptr<CudaDevice> device,
      std::function<MemoryLimits()> limits = [] { return read_memory_limits(); });
  // REQUIRES: no copy from it is running.
  ~PinnedMemory() override;

  // Pinned memory, or ordinary memory if none can be pinned. Throws std::bad_alloc, the first
  // sticky error of the device, and StoppedError in a forked child.
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* data, std::size_t bytes) noexcept override;

  // Pins what is missing to have `bytes` free, in one slab. If the driver refuses, allocate() tries
  // again with less, until the driver has refused kMaxRefusals times in a row. Throws as
  // allocate().
  void reserve(std::size_t bytes);
  // Why some of the memory is not pinned, and what to do: the driver's error, and the limits of the
  // process (RLIMIT_MEMLOCK, cgroup) with their values. Empty if all of it is pinned.
  std::string complaint() const;
  std::size_t pinned_bytes() const FL_EXCLUDES(mutex_);
  std::size_t slab_count() const;

 private:
  std::byte* take(std::size_t bytes) FL_EXCLUDES(mutex_);
  std::byte* grow(std::size_t wanted, std::size_t needed) FL_REQUIRES(growing_);
  std::byte* add(const Slab& slab, std::size_t needed) FL_EXCLUDES(mutex_);
  std::size_t allowance() const FL_EXCLUDES(mutex_);
  void refuse(const std::string& reason) FL_EXCLUDES(mutex_);

  const std::uint64_t generation_ = fork_generation();
  const std::shared_ptr<CudaDevice> device_;
  const std::function<MemoryLimits()> limits_;
  HostMemory ordinary_;

  // Held while a slab is pinned; other threads take and release parts meanwhile.
  Mutex growing_ FL_ACQUIRED_BEFORE(mutex_);
  int refusals_ FL_GUARDED_BY(growing_) = 0;

  mutable Mutex mutex_;
  FreeParts parts_ FL_GUARDED_BY(mutex_);
  std::vector<Slab> slabs_ FL_GUARDED_BY(mutex_);
  std::size_t pinned_bytes_ FL_GUARDED_BY(mutex_) = 0;
  std::size_t ordinary_bytes_ FL_GUARDED_BY(mutex_) = 0;
  std::string reason_ FL_GUARDED_BY(mutex_);  // of the last refusal, until all is pinned again
};

}  // namespace fastload
