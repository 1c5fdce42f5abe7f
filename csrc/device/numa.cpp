#include "device/numa.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

#include "base/signals.h"

namespace fastload {
namespace {

// Memory per thread that touches pages: starting a thread must cost little next to its work.
constexpr std::size_t kBytesPerThread = std::size_t{64} << 20;
// Balances the time until a loader starts against the cores that the training script needs then.
constexpr std::size_t kMaxThreads = 8;
// Parts are multiples of it, so that no two threads share a huge page.
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int kMaxNodes = 1024;     // the kernel's own maximum
constexpr int kPreferred = 1;       // MPOL_PREFERRED
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The number that a text is; -1 if it is not one, or negative.
int number(const std::string& text) {
  int value = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && value >= 0 ? value : -1;
}

// Makes the kernel prefer a node for memory. Returns false if it refuses, as in many containers.
bool prefer_node(std::byte* data, std::size_t bytes, int node) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  if (node >= kMaxNodes) return false;
  unsigned long mask[kMaxNodes / kBits] = {};
  mask[node / kBits] = 1UL << (node % kBits);
  return syscall(SYS_mbind, data, bytes, kPreferred, mask, kMaxNodes + 1, 0) == 0;
}

// Moves the calling thread to these CPUs, so that pages that it touches first lie on their node.
// Does nothing where that is not allowed.
void run_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  if (CPU_COUNT(&set) > 0) sched_setaffinity(0, sizeof(set), &set);
}

bool touch(std::byte* data, std::size_t bytes) {
  if (madvise(data, bytes, kPopulateWrite) == 0) return true;
  if (errno == ENOMEM || errno == EFAULT) return false;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (std::size_t at = 0; at < bytes; at += page) {
    *const_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
  return true;
}

}  // namespace

int numa_node_of(const std::string& pci_id, const std::string& sysfs) {
  std::string id = pci_id;
  std::transform(id.begin(), id.end(), id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (first_line(sysfs + "/devices/system/node/online") == "0") return -1;
  return number(first_line(sysfs + "/bus/pci/devices/" + id + "/numa_node"));
}

std::vector<int> cpus_of_node(int node, const std::string& sysfs) {
  std::vector<int> cpus;
  std::istringstream ranges(
      first_line(sysfs + "/devices/system/node/node" + std::to_string(node) + "/cpulist"));
  for (std::string range; std::getline(ranges, range, ',');) {
    const std::size_t dash = range.find('-');
    const int first = number(range.substr(0, dash));
    const int last = dash == std::string::npos ? first : number(range.substr(dash + 1));
    for (int cpu = first; first >= 0 && cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

bool populate(std::byte* data, std::size_t bytes, int node) {
  // If the kernel refuses the node, threads that run on its CPUs touch the pages.
  std::vector<int> cpus;
  if (node >= 0 && !prefer_node(data, bytes, node)) cpus = cpus_of_node(node);
  const std::size_t cores = cpus.empty() ? std::thread::hardware_concurrency() : cpus.size();
  const std::size_t count = std::clamp<std::size_t>(bytes / kBytesPerThread, 1,
                                                    std::clamp<std::size_t>(cores, 1, kMaxThreads));
  if (count == 1 && cpus.empty()) return touch(data, bytes);

  const std::size_t part = (bytes / count + kHugePage) & ~(kHugePage - 1);
  std::atomic<bool> enough{true};
  const auto work = [&](std::size_t from) {
    if (!touch(data + from, std::min(part, bytes - from))) enough = false;
  };
  const SignalsBlocked blocked;
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (std::size_t from = 0; from < bytes; from += part) {
    try {
      threads.emplace_back([&work, &cpus, from] {
        run_on(cpus);
        work(from);
      });
    } catch (const std::system_error&) {
      work(from);
    }
  }
  for (std::thread& thread : threads) thread.join();
  return enough;
}

}  // namespace fastload
