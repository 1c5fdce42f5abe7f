#include "device/memory_limits.h"

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"
#include "fixtures.h"

using namespace fastload;

namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

// A root folder with the files of /proc and /sys.
class Machine {
 public:
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path file = folder_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  MemoryLimits limits() const { return read_memory_limits(folder_ / ""); }

 private:
  fixtures::Folder folder_;
};

}  // namespace

int main() {
  check::promise("without the files there is no limit", [] {
    const MemoryLimits limits = Machine().limits();
    CHECK(limits.available == MemoryLimits::kNone && limits.cgroup == MemoryLimits::kNone);
  });

  check::promise("available memory is the kernel's estimate", [] {
    Machine machine;
    machine.write("proc/meminfo", "MemTotal:  4194304 kB\nMemFree: 1 kB\nMemAvailable:  1024 kB\n");
    CHECK_EQUAL(machine.limits().available, 1 << 20);
    CHECK(read_memory_limits().available > 0);
  });

  check::promise("version 2: the tightest limit of the group and those around it", [] {
    Machine machine;
    machine.write("proc/self/cgroup", "0::/a.slice/b/c\n");
    machine.write("sys/fs/cgroup/a.slice/b/c/memory.max", "max\n");
    CHECK(machine.limits().cgroup == MemoryLimits::kNone);
    machine.write("sys/fs/cgroup/a.slice/memory.max", "3221225472\n");
    CHECK_EQUAL(machine.limits().cgroup, 3 * kGiB);
    machine.write("sys/fs/cgroup/a.slice/b/memory.max", "2147483648\n");
    CHECK_EQUAL(machine.limits().cgroup, 2 * kGiB);
    machine.write("sys/fs/cgroup/memory.max", "1073741824\n");  // as a container sees its own
    CHECK_EQUAL(machine.limits().cgroup, kGiB);
  });

  check::promise("version 1: the memory controller's", [] {
    Machine machine;
    machine.write("proc/self/cgroup",
                  "5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/1\n0::/\nnoise\n");
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    CHECK(machine.limits().cgroup == MemoryLimits::kNone);
    machine.write("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "2147483648\n");
    CHECK_EQUAL(machine.limits().cgroup, 2 * kGiB);
  });

  check::promise("RLIMIT_MEMLOCK is this process's", [] {
    rlimit memlock = {};
    CHECK(getrlimit(RLIMIT_MEMLOCK, &memlock) == 0);
    memlock.rlim_cur = 4096;
    CHECK(setrlimit(RLIMIT_MEMLOCK, &memlock) == 0);
    CHECK_EQUAL(read_memory_limits().memlock, 4096);
  });

  check::promise("sizes are written for people", [] {
    CHECK(readable_bytes(0) == "0 bytes");
    CHECK(readable_bytes(1023) == "1023 bytes");
    CHECK(readable_bytes(65536) == "64.0 KiB");
    CHECK(readable_bytes(3 * kGiB / 2) == "1.5 GiB");
    CHECK(readable_bytes(MemoryLimits::kNone) == "unlimited");
  });
}
