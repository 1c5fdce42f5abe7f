#include "device/numa.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "check.h"
#include "cuda_fixtures.h"
#include "fixtures.h"

using namespace fastload;

namespace {

class Sysfs {
 public:
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path file = folder_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string path() const { return folder_ / ""; }

 private:
  fixtures::Folder folder_;
};

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Fresh memory after populate(): all of it is there, and reads as zeros.
void check_populated(std::size_t bytes, int node) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(mapped != MAP_FAILED);
  auto* data = static_cast<std::byte*>(mapped);
  CHECK(populate(data, bytes, node));
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((bytes + page - 1) / page);
  CHECK(mincore(mapped, bytes, resident.data()) == 0);
  CHECK(std::all_of(resident.begin(), resident.end(), [](unsigned char c) { return c & 1; }));
  for (std::size_t at = 0; at < bytes; at += page) CHECK(data[at] == std::byte{0});
  munmap(mapped, bytes);
}

// As the default profiles of container runtimes do.
void forbid_mbind() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
  CHECK(syscall(SYS_mbind, nullptr, 0, 0, nullptr, 0, 0) == -1 && errno == EPERM);
}

}  // namespace

int main() {
  check::promise("the node beside a device is the kernel's; its letters are small there", [] {
    Sysfs sysfs;
    CHECK_EQUAL(numa_node_of("0000:3B:00.0", sysfs.path()), -1);
    sysfs.write("bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
    CHECK_EQUAL(numa_node_of("0000:3B:00.0", sysfs.path()), 1);
    sysfs.write("devices/system/node/online", "0-1\n");
    CHECK_EQUAL(numa_node_of("0000:3B:00.0", sysfs.path()), 1);
    CHECK_EQUAL(numa_node_of("0000:3C:00.0", sysfs.path()), -1);
    CHECK_EQUAL(numa_node_of("", sysfs.path()), -1);
    sysfs.write("bus/pci/devices/0000:3b:00.0/numa_node", "-1\n");
    CHECK_EQUAL(numa_node_of("0000:3B:00.0", sysfs.path()), -1);
    sysfs.write("bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
    sysfs.write("devices/system/node/online", "0\n");  // one node: nothing to choose
    CHECK_EQUAL(numa_node_of("0000:3B:00.0", sysfs.path()), -1);
  });

  check::promise("the CPUs of a node", [] {
    Sysfs sysfs;
    const auto cpus = [&](const std::string& text) {
      sysfs.write("devices/system/node/node2/cpulist", text);
      return cpus_of_node(2, sysfs.path());
    };
    CHECK(cpus("0-2,8,12-13\n") == std::vector<int>({0, 1, 2, 8, 12, 13}));
    CHECK(cpus("5\n") == std::vector<int>({5}));
    CHECK(cpus("\n").empty() && cpus("x-3,-4\n").empty() && cpus("3-1\n").empty());
    CHECK(cpus_of_node(7, sysfs.path()).empty());
  });

  check::promise("memory is populated, by one thread or several, whatever node is wished for", [] {
    for (const std::size_t bytes : {std::size_t{4096}, 5 * kMiB + 4096, 130 * kMiB + 4096}) {
      for (const int node : {-1, 0, 63, 5000}) check_populated(bytes, node);
    }
  });

  check::promise("a container that forbids mbind: other threads touch, the caller stays put", [] {
    const int status = cuda_fixtures::status_of_child([] {
      cpu_set_t before;
      cpu_set_t after;
      forbid_mbind();
      CHECK(sched_getaffinity(0, sizeof(before), &before) == 0);
      for (int cpu : cpus_of_node(0)) {
        if (CPU_COUNT(&before) > 1) CPU_CLR(cpu, &before);
      }
      CHECK(sched_setaffinity(0, sizeof(before), &before) == 0);
      CHECK(sched_getaffinity(0, sizeof(before), &before) == 0);
      for (const std::size_t bytes : {kMiB, 130 * kMiB}) check_populated(bytes, 0);
      CHECK(sched_getaffinity(0, sizeof(after), &after) == 0 && CPU_EQUAL(&before, &after));
    });
    CHECK_EQUAL(status, 0);
  });
}
