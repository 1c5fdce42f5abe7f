// The memory of batches: slots that are leased and reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fork.h"
#include "base/memory_source.h"
#include "base/mutex.h"

namespace fastload {

class SlotPool;

// NOTE [Slot life]. A slot belongs to the holder of its lease: the worker that fills it, then the
// batch, then every tensor that aliases it. The lease returns itself when the last of them is
// freed, on any thread. No thread ever waits for a slot: the engine's depth bounds how far workers
// run ahead, and does not count delivered batches, so that a user may keep as many as fit into
// memory.

// Owns `bytes()` bytes at `data()` until it is destroyed, which returns them to the pool; in a
// forked child it does nothing, since the slot is the parent's. Move-only. One thread at a time; it
// may be destroyed by any.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept { *this = std::move(other); }
  Lease& operator=(Lease&& other) noexcept;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { reset(); }

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  void reset() noexcept;

 private:
  friend class SlotPool;

  std::shared_ptr<SlotPool> pool_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t capacity_ = 0;
};

struct SlotPoolStats {
  std::int64_t allocation_count;  // slots ever taken from the memory source
  std::size_t used_bytes;         // leased now
  std::size_t free_bytes;         // kept for the next lease
};

// Grows when all slots are leased; gives memory back when more is free than the running engines
// need. Always held by shared_ptr, since leases may outlive everything else. Thread-safe.
class SlotPool : public std::enable_shared_from_this<SlotPool> {
 public:
  explicit SlotPool(std::shared_ptr<MemorySource> memory) : memory_(std::move(memory)) {}
  ~SlotPool();

  // Returns the size of the slot for `bytes` bytes.
  static std::size_t capacity_for(std::size_t bytes);
  // Returns the size to acquire where sizes vary from batch to batch, so that batches fit into each
  // other's slots: at most a quarter more.
  static std::size_t roomy(std::size_t bytes);
  // Returns a slot of `bytes` bytes, with a capacity of at least `room`. Throws std::bad_alloc.
  Lease acquire(std::size_t bytes, std::size_t room = 0);
  // An engine adds the bytes that it keeps in circulation, and removes them when it ends. The
  // demand of the last one stays allocated for the next epoch.
  void add_demand(std::size_t bytes);
  void remove_demand(std::size_t bytes);
  SlotPoolStats stats() const;
  // False in a forked child, where the pool must not be used.
  bool usable() const { return generation_ == fork_generation(); }

 private:
  friend class Lease;
  struct Slot {
    std::byte* data;
    std::size_t capacity;
  };

  void give_back(std::byte* data, std::size_t capacity) noexcept FL_EXCLUDES(mutex_);
  std::vector<Slot> take_surplus() FL_REQUIRES(mutex_);
  void release(const std::vector<Slot>& slots) noexcept FL_EXCLUDES(mutex_);

  const std::uint64_t generation_ = fork_generation();
  const std::shared_ptr<MemorySource> memory_;
  mutable Mutex mutex_;
  std::vector<Slot> free_ FL_GUARDED_BY(mutex_);  // the most recently used last
  std::size_t free_bytes_ FL_GUARDED_BY(mutex_) = 0;
  std::size_t used_bytes_ FL_GUARDED_BY(mutex_) = 0;
  std::size_t live_demand_ FL_GUARDED_BY(mutex_) = 0;
  std::size_t last_demand_ FL_GUARDED_BY(mutex_) = 0;
  std::int64_t allocation_count_ FL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fastload
