#include "batch/slot_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/bytes.h"
#include "base/pages.h"

namespace fastload {

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  reset();
  pool_ = std::move(other.pool_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  capacity_ = std::exchange(other.capacity_, 0);
  return *this;
}

void Lease::reset() noexcept {
  if (pool_ == nullptr) return;
  const std::shared_ptr<SlotPool> pool = std::move(pool_);
  pool_ = nullptr;
  if (pool->usable()) pool->give_back(data_, capacity_);
  data_ = nullptr;
  bytes_ = capacity_ = 0;
}

SlotPool::~SlotPool() {
  if (!usable()) return;
  release(free_);
}

std::size_t SlotPool::capacity_for(std::size_t bytes) {
  return align_up(std::max<std::size_t>(bytes, 1),
                  bytes < 16 * kPageBytes ? kFieldAlignment : kPageBytes);
}

std::size_t SlotPool::roomy(std::size_t bytes) {
  return align_up(bytes, std::max(kFieldAlignment, std::bit_floor(bytes) / 4));
}

Lease SlotPool::acquire(std::size_t bytes, std::size_t room) {
  Lease lease;
  lease.pool_ = shared_from_this();
  lease.bytes_ = bytes;
  const std::size_t capacity = capacity_for(std::max(bytes, room));
  {
    MutexLock lock(mutex_);
    // Twice too large is a fit, but the tightest is taken: a larger one may be what another field
    // of the same batch needs.
    auto found = free_.end();
    for (auto slot = free_.end(); slot != free_.begin();) {
      --slot;
      if (slot->capacity < capacity || slot->capacity / 2 > capacity) continue;
      if (found == free_.end() || slot->capacity < found->capacity) found = slot;
      if (found->capacity == capacity) break;
    }
    if (found != free_.end()) {
      lease.data_ = found->data;
      lease.capacity_ = found->capacity;
      free_.erase(found);
      free_bytes_ -= lease.capacity_;
      used_bytes_ += lease.capacity_;
      unpoison(lease.data_, lease.capacity_);
      return lease;
    }
    used_bytes_ += capacity;
    ++allocation_count_;
  }
  try {
    lease.data_ = memory_->allocate(capacity);
  } catch (...) {
    lease.pool_ = nullptr;
    MutexLock lock(mutex_);
    used_bytes_ -= capacity;
    --allocation_count_;
    throw;
  }
  lease.capacity_ = capacity;
  return lease;
}

void SlotPool::give_back(std::byte* data, std::size_t capacity) noexcept {
  poison(data, capacity);
  std::vector<Slot> surplus;
  {
    MutexLock lock(mutex_);
    free_.push_back({data, capacity});
    free_bytes_ += capacity;
    used_bytes_ -= capacity;
    surplus = take_surplus();
  }
  release(surplus);
}

void SlotPool::add_demand(std::size_t bytes) {
  MutexLock lock(mutex_);
  live_demand_ += bytes;
}

void SlotPool::remove_demand(std::size_t bytes) {
  std::vector<Slot> surplus;
  {
    MutexLock lock(mutex_);
    live_demand_ -= bytes;
    last_demand_ = bytes;
    surplus = take_surplus();
  }
  release(surplus);
}

SlotPoolStats SlotPool::stats() const {
  MutexLock lock(mutex_);
  return {allocation_count_, used_bytes_, free_bytes_};
}

// Takes out the slots that have been free the longest, beyond the demand of engines.
std::vector<SlotPool::Slot> SlotPool::take_surplus() {
  const std::size_t keep = std::max(live_demand_, last_demand_);
  std::size_t count = 0;
  while (free_bytes_ > keep && count < free_.size()) free_bytes_ -= free_[count++].capacity;
  std::vector<Slot> surplus;
  if (count == 0) return surplus;
  const auto end = free_.begin() + static_cast<std::ptrdiff_t>(count);
  surplus.assign(free_.begin(), end);
  free_.erase(free_.begin(), end);
  return surplus;
}

void SlotPool::release(const std::vector<Slot>& slots) noexcept {
  for (const Slot& slot : slots) {
    unpoison(slot.data, slot.capacity);
    memory_->release(slot.data, slot.capacity);
  }
}

}  // namespace fastload
