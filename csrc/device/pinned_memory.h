// Memory for slots from which the copy engine of a GPU reads by itself.
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

// NOTE [Slabs]. Pinning takes the driver milliseconds and stalls its other users, so it is done in
// slabs, of which slots are parts: a loader reserves one for all that it keeps in circulation
// before it starts. A slab is mapped, placed on the GPU's NUMA node, touched, kept from forked
// children and registered; where that is refused, the driver is asked for memory of its own; where
// it refuses that too, ordinary memory is used, which is right but slow, and complaint() says why.
// So it does where slabs would come to more than a quarter of the memory that is available, or of
// what the cgroup allows: what is pinned cannot be swapped out for the rest of the machine.
//
// Thread-safe. Slabs live as long as this object; after poison and in a forked child they are left
// to the end of the process.
class PinnedMemory final : public MemorySource {
 public:
  // `limits`: asked before each slab.
  explicit PinnedMemory(
      std::shared_ptr<CudaDevice> device,
      std::function<MemoryLimits()> limits = [] { return read_memory_limits(); });
  // REQUIRES: no copy from it is running.
  ~PinnedMemory() override;

  // Throws also the first sticky error of the device, and StoppedError in a forked child.
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* data, std::size_t bytes) noexcept override;

  // Makes room for so much: what is not free is pinned, in one slab. What the driver refuses is
  // tried again by allocate(), for less, until it has refused four times in a row. Throws as
  // allocate().
  void reserve(std::size_t bytes);
  // Why some of the memory is not pinned, and what to do: limits of the process (RLIMIT_MEMLOCK,
  // cgroup) with their values, and the driver's error. Empty if all of it is.
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

  // Held while a slab is pinned, during which others take and release parts.
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
