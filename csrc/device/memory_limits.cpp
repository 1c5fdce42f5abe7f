#include "device/memory_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace fastload {
namespace {

// cgroup v1 writes "no limit" as the largest multiple of a page: values from here on set no limit.
constexpr std::size_t kMaxLimit = std::size_t{1} << 60;

std::size_t limit_in(const std::string& file) {
  std::ifstream stream(file);
  std::size_t bytes = 0;
  return stream >> bytes && bytes < kMaxLimit ? bytes : MemoryLimits::kNone;
}

// The smallest limit of a cgroup and of its ancestors. In a container the path may be the host's,
// whose folders do not exist there: missing ones set no limit, and the mount point is always read.
std::size_t limit_of(const std::string& mount, std::string group, const std::string& name) {
  std::size_t limit = limit_in(mount + "/" + name);
  while (group.size() > 1) {
    limit = std::min(limit, limit_in(mount + group + "/" + name));
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  return limit;
}

// Lines are "0::/path" (v2) and "number:controller,controller:/path" (v1).
std::size_t cgroup_limit(const std::string& root) {
  const std::string mount = root + "/sys/fs/cgroup";
  std::size_t limit = MemoryLimits::kNone;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers(",");
    controllers.append(line, first + 1, second - first - 1).append(",");
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") limit = std::min(limit, limit_of(mount, group, "memory.max"));
    if (controllers.find(",memory,") != std::string::npos) {
      limit = std::min(limit, limit_of(mount + "/memory", group, "memory.limit_in_bytes"));
    }
  }
  return limit;
}

std::size_t available_memory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::size_t kibibytes = 0;
    if (words >> name >> kibibytes && name == "MemAvailable:") return kibibytes * 1024;
  }
  return MemoryLimits::kNone;
}

}  // namespace

MemoryLimits read_memory_limits(const std::string& root) {
  MemoryLimits limits;
  limits.available = available_memory(root);
  limits.cgroup = cgroup_limit(root);
  rlimit memlock = {};
  if (getrlimit(RLIMIT_MEMLOCK, &memlock) == 0 && memlock.rlim_cur != RLIM_INFINITY) {
    limits.memlock = memlock.rlim_cur;
  }
  return limits;
}

std::string readable_bytes(std::size_t bytes) {
  if (bytes == MemoryLimits::kNone) return "unlimited";
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f %s", unit == 0 ? 0 : 1, value, units[unit]);
  return text;
}

}  // namespace fastload
