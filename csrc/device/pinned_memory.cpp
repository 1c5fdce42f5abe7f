#include "device/pinned_memory.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace fastload {
namespace {

// One huge page.
constexpr std::size_t kMinSlab = std::size_t{2} << 20;
// Memory that was not reserved grows by slabs that double up to this size. Balances the number of
// stalls in the driver against pinned memory that is never used.
constexpr std::size_t kMaxGrowth = std::size_t{64} << 20;
constexpr std::size_t kMaxSlot = std::size_t{1} << 60;  // sums with it cannot overflow
// After as many refusals in a row the driver is not called again: each may take milliseconds.
constexpr int kMaxRefusals = 4;
// The share of the available memory, and of the cgroup's limit, that may be pinned: 1/4.
constexpr std::size_t kPinnedShare = 4;

}  // namespace

PinnedMemory::PinnedMemory(std::shared_ptr<CudaDevice> device, std::function<MemoryLimits()> limits)
    : device_(std::move(device)), limits_(std::move(limits)) {}

PinnedMemory::~PinnedMemory() {
  try {
    const CudaDevice::Scope scope(*device_);
    MutexLock lock(mutex_);
    for (const Slab& slab : slabs_) {
      unpoison(slab.data, slab.bytes);
      unpin(*device_, slab);
    }
  } catch (const std::runtime_error&) {
    // In a forked child, and after a sticky error: left to the end of the process.
  }
}

std::byte* PinnedMemory::allocate(std::size_t bytes) {
  device_->check_usable();
  if (bytes > kMaxSlot) throw std::bad_alloc();
  const std::size_t size = align_up(std::max<std::size_t>(bytes, 1), kFieldAlignment);
  if (std::byte* part = take(size)) return part;
  {
    MutexLock growing(growing_);
    if (std::byte* part = take(size)) return part;  // another thread has pinned some meanwhile
    const std::size_t doubled = std::clamp(pinned_bytes(), kMinSlab, kMaxGrowth);
    if (std::byte* part = grow(std::max(size, doubled), size)) return part;
  }
  std::byte* data = ordinary_.allocate(bytes);
  MutexLock lock(mutex_);
  ordinary_bytes_ += bytes;
  return data;
}

void PinnedMemory::release(std::byte* data, std::size_t bytes) noexcept {
  if (generation_ != fork_generation()) return;
  {
    MutexLock lock(mutex_);
    if (parts_.contains(data)) {
      parts_.give(data, align_up(std::max<std::size_t>(bytes, 1), kFieldAlignment));
      return;
    }
    ordinary_bytes_ -= bytes;
  }
  ordinary_.release(data, bytes);
}

void PinnedMemory::reserve(std::size_t bytes) {
  device_->check_usable();
  if (bytes > kMaxSlot) throw std::bad_alloc();
  MutexLock growing(growing_);
  std::size_t free = 0;
  {
    MutexLock lock(mutex_);
    free = parts_.bytes();
  }
  if (free < bytes) grow(std::max(bytes - free, kMinSlab), 0);
}

std::byte* PinnedMemory::take(std::size_t bytes) {
  MutexLock lock(mutex_);
  return parts_.take(bytes);
}

// Pins a slab of `wanted` bytes, or of less if that much is not allowed, and takes `needed` bytes
// of it. Returns nullptr if nothing is needed, or if not even that much can be pinned.
std::byte* PinnedMemory::grow(std::size_t wanted, std::size_t needed) {
  const std::size_t min = std::max(needed, kMinSlab);
  const std::size_t allowed = allowance();
  std::size_t size = std::min(wanted, allowed);
  std::string refused;
  if (size < wanted) {
    refused = "pinning " + readable_bytes(wanted) +
              " more would take more than a quarter of the memory that is available, or of what "
              "the cgroup may use";
  }
  while (size >= min && refusals_ < kMaxRefusals) {
    try {
      std::byte* part = add(pin(*device_, size), needed);
      refusals_ = 0;
      if (needed > 0) return part;
      break;
    } catch (const CudaError& error) {
      device_->check_usable();
      refused = error.what();
      ++refusals_;
    }
    if (needed == 0 || size == min) break;
    size = min;
  }
  if (!refused.empty()) refuse(refused);
  return nullptr;
}

std::byte* PinnedMemory::add(const Slab& slab, std::size_t needed) {
  MutexLock lock(mutex_);
  try {
    slabs_.push_back(slab);
    parts_.add_slab(slab.data, slab.bytes);
  } catch (const std::bad_alloc&) {
    if (!slabs_.empty() && slabs_.back().data == slab.data) slabs_.pop_back();
    const CudaDevice::Scope scope(*device_);
    unpin(*device_, slab);
    throw;
  }
  pinned_bytes_ += slab.bytes;
  if (ordinary_bytes_ == 0) reason_.clear();
  return needed > 0 ? parts_.take(needed) : nullptr;
}

// How many more bytes may be pinned.
std::size_t PinnedMemory::allowance() const {
  const MemoryLimits limits = limits_();
  const std::size_t pinned = pinned_bytes();
  std::size_t max = MemoryLimits::kNone;
  if (limits.cgroup != MemoryLimits::kNone) max = limits.cgroup / kPinnedShare;
  if (limits.available != MemoryLimits::kNone) {
    max = std::min(max, limits.available / kPinnedShare + pinned / kPinnedShare);
  }
  return max > pinned ? max - pinned : 0;
}

void PinnedMemory::refuse(const std::string& reason) {
  MutexLock lock(mutex_);
  reason_ = reason;
}

std::string PinnedMemory::complaint() const {
  std::string reason;
  {
    MutexLock lock(mutex_);
    reason = reason_;
  }
  if (reason.empty()) return reason;
  const MemoryLimits limits = limits_();
  return "some batches lie in memory that is not pinned, from which copies to the GPU are slower "
         "and do not overlap with computing: " +
         reason + ". Limits: RLIMIT_MEMLOCK " + readable_bytes(limits.memlock) +
         " (ulimit -l; containers: --ulimit memlock=-1), cgroup memory.max " +
         readable_bytes(limits.cgroup) + ", available memory " + readable_bytes(limits.available) +
         ". Raise the limit, or keep fewer or smaller batches ahead (prefetch_factor, batch_size)";
}

std::size_t PinnedMemory::pinned_bytes() const {
  MutexLock lock(mutex_);
  return pinned_bytes_;
}

std::size_t PinnedMemory::slab_count() const {
  MutexLock lock(mutex_);
  return slabs_.size();
}

}  // namespace fastload
