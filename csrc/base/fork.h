// Tells processes apart: a counter that grows in every forked child, and is cheap to read.
//
// NOTE [Fork]. Threads do not survive fork() and a mutex may be copied while it is locked. So each
// object that owns threads or a mutex stores the generation in which it was made. In a child its
// destructor does nothing, its threads and locks are leaked, and using it throws StoppedError.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace fastload {

// The number of forks between the process that loaded the library and this one. Thread-safe.
std::uint64_t fork_generation();

// Returns the T of this process, which is made at the first call and never destroyed. A forked
// child makes its own, since a lock in the parent's may be held forever. Thread-safe.
template <class T>
T& of_this_process() {
  struct Made {
    const std::uint64_t generation = fork_generation();
    T value;
  };
  static std::atomic<Made*> current{nullptr};
  Made* made = current.load(std::memory_order_acquire);
  if (made != nullptr && made->generation == fork_generation()) return made->value;
  auto fresh = std::make_unique<Made>();
  if (!current.compare_exchange_strong(made, fresh.get(), std::memory_order_acq_rel)) {
    return made->value;  // another thread was first
  }
  return fresh.release()->value;
}

}  // namespace fastload
