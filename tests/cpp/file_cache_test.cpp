#include "storage/file_cache.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <cerrno>

#include "base/error.h"
#include "fixtures.h"

using namespace fastload;
using fixtures::Bytes;
using fixtures::Folder;

namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

std::size_t mappings_of(const std::string& part) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(part) != std::string::npos;
  return count;
}

}  // namespace

int main() {
  check::promise("limits leave most mappings and descriptors to the training script", [] {
    const OpenFileLimits limits = OpenFileLimits::of_this_process();
    std::size_t max_maps = 0;
    std::ifstream("/proc/sys/vm/max_map_count") >> max_maps;
    rlimit files = {};
    getrlimit(RLIMIT_NOFILE, &files);
    CHECK(limits.mappings >= 16 && limits.mappings <= max_maps / 4);
    CHECK(limits.descriptors >= 4 && limits.descriptors <= files.rlim_cur / 4);
  });

  check::promise("no more than the limits are open, the least recently used are closed", [] {
    const Folder folder;
    FileCache cache(Io::kMmap, {.mappings = 5, .descriptors = 3});
    for (int i = 0; i < 20; ++i) {
      const std::string path = folder / ("many" + std::to_string(i));
      fixtures::write_file(path, Bytes(10, static_cast<std::byte>(i)));
      cache.add(path, 10);
    }
    const std::size_t before = open_descriptors();
    const auto held = cache.mapping(0);
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 20; ++i) {
        CHECK(cache.mapping(i)->bytes()[9] == static_cast<std::byte>(i));
        CHECK(cache.mapping(0)->bytes().data() == held->bytes().data());  // used all the time
        CHECK_EQUAL(cache.descriptor(i)->size_bytes(), 10);
      }
    }
    CHECK(mappings_of("/many") <= 5);
    CHECK(open_descriptors() <= before + 3);
    CHECK(held->bytes()[0] == std::byte{0});
  });

  check::promise("what is held stays open when the cache lets go of it", [] {
    const Folder folder;
    FileCache cache(Io::kMmap, {.mappings = 1, .descriptors = 1});
    for (int i = 0; i < 3; ++i) {
      const std::string path = folder / ("held" + std::to_string(i));
      fixtures::write_file(path, Bytes(10, static_cast<std::byte>(i)));
      cache.add(path, 10);
    }
    const auto first = cache.mapping(0);
    const auto descriptor = cache.descriptor(0);
    cache.mapping(1);
    cache.mapping(2);
    cache.descriptor(2);
    std::byte byte{9};
    CHECK_EQUAL(descriptor->read_at(3, {&byte, 1}), 1);
    CHECK(byte == std::byte{0} && first->bytes()[3] == std::byte{0});
    CHECK_EQUAL(mappings_of("/held"), 2);
  });

  check::promise("pread sees the bytes a mapping sees, and stops at the end", [] {
    const Folder folder;
    Bytes bytes(1000);
    for (std::size_t i = 0; i < 1000; ++i) bytes[i] = static_cast<std::byte>(i);
    fixtures::write_file(folder / "r", bytes);
    FileCache cache(Io::kPread);
    cache.add(folder / "r", 1000);
    CHECK(cache.mapping(0) == nullptr);
    Bytes out(700);
    CHECK_EQUAL(cache.descriptor(0)->read_at(100, out), 700);
    CHECK(std::equal(out.begin(), out.end(), bytes.begin() + 100));
    CHECK_EQUAL(cache.descriptor(0)->read_at(600, out), 400);
    CHECK_EQUAL(cache.descriptor(0)->read_at(5000, out), 0);
  });

#if !defined(FASTLOAD_SANITIZE)
  check::promise("no address space left for a mapping: the file is read by pread instead", [] {
    const Folder folder;
    fixtures::write_file(folder / "big", {});
    std::filesystem::resize_file(folder / "big", std::uintmax_t{1} << 34);
    const pid_t child = fork();
    if (child == 0) {
      const rlimit space = {std::uint64_t{1} << 32, std::uint64_t{1} << 32};
      CHECK(setrlimit(RLIMIT_AS, &space) == 0);
      FileCache cache(Io::kMmap);
      cache.add(folder / "big", std::int64_t{1} << 34);
      CHECK(cache.mapping(0) == nullptr);
      CHECK_EQUAL(cache.descriptor(0)->size_bytes(), std::int64_t{1} << 34);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_EQUAL(status, 0);
  });
#endif
}
