#include "base/fork.h"

#include <pthread.h>

#include <atomic>

namespace fastload {
namespace {

std::atomic<std::uint64_t> generation{0};

const int registered = pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });

}  // namespace

std::uint64_t fork_generation() {
  (void)registered;
  return generation.load(std::memory_order_relaxed);  // it changes in a new process only
}

}  // namespace fastload
