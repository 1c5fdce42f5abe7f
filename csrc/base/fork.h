// Which process this is, cheaply: a counter that grows in every forked child.
//
// NOTE [Fork]. Threads do not survive fork() and a mutex may be copied while it is locked. So each
// object that owns threads or a mutex remembers the generation it was made in; in a child it is
// left alone: its destructor does nothing, its threads and locks are leaked, and using it raises.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace fastload {

// The number of forks between the process that loaded the library and this one. Thread-safe.
std::uint64_t fork_generation();

// The one T of this process: made at the first call, never destroyed. A forked child makes its own,
// since a lock in the parent's may be held for ever. Thread-safe.
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
