// How much memory the machine and the container allow this process to use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fastload {

struct MemoryLimits {
  static constexpr std::size_t kNone = SIZE_MAX;

  std::size_t available = kNone;  // MemAvailable of /proc/meminfo
  std::size_t cgroup = kNone;     // the smallest memory.max (v2) or memory.limit_in_bytes (v1)
  std::size_t memlock = kNone;    // RLIMIT_MEMLOCK
};

// Reads the limits below `root`, which tests replace; a limit that cannot be read is kNone.
// Thread-safe.
MemoryLimits read_memory_limits(const std::string& root = "");

// A size as text: "1.5 GiB"; "unlimited" for MemoryLimits::kNone.
std::string readable_bytes(std::size_t bytes);

}  // namespace fastload
