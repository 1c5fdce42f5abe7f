// The memory of batches: slots that are leased, never handed out twice at once, and used again.
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

// NOTE [Slot life]. A slot belongs to whoever holds its lease: the worker that fills it, then the
// batch, then every tensor that aliases it. The lease returns itself when the last of them dies, on
// whatever thread that is. Nobody ever waits for a slot: how far workers run ahead is bounded by
// the engine's depth, which does not count delivered batches, so that a user may keep as many as
// memory holds.

// The right to use `bytes()` bytes at `data()`. Move-only; returns itself. In a forked child it
// does nothing: the slot is the parent's.
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

  // The memory that a slot for `bytes` bytes takes.
  static std::size_t capacity_for(std::size_t bytes);
  // What to ask for where sizes vary from batch to batch, so that they fit each other's slots: at
  // most a quarter more.
  static std::size_t roomy(std::size_t bytes);
  // A slot of `bytes` bytes, and room for more if `room` is larger. Throws std::bad_alloc.
  Lease acquire(std::size_t bytes, std::size_t room = 0);
  // An engine announces how many bytes it keeps in circulation, and takes it back when it ends.
  // What the last one needed is kept for the next epoch.
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
