#include "storage/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/error.h"

namespace fastload {
namespace {

// f_type of file systems whose mappings are slow or raise SIGBUS on a network fault (statfs(2)).
constexpr std::array<unsigned long, 12> kRemoteFileSystems = {
    0x6969,      // NFS
    0x65735546,  // FUSE, virtiofs
    0x01021997,  // 9p
    0x517B,      // SMB
    0xFF534D42,  // CIFS
    0xFE534D42,  // SMB2
    0x0BD00BD0,  // Lustre
    0x00C36400,  // Ceph
    0x5346414F,  // AFS
    0x47504653,  // GPFS
    0x19830326,  // BeeGFS
    0x7461636F,  // OCFS2
};

std::size_t page_bytes() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

bool is_remote(const struct statfs& status) {
  const auto type = static_cast<unsigned long>(status.f_type) & 0xFFFFFFFFUL;
  return std::find(kRemoteFileSystems.begin(), kRemoteFileSystems.end(), type) !=
         kRemoteFileSystems.end();
}

const std::byte* page_start(const std::byte* data) {
  return data - reinterpret_cast<std::uintptr_t>(data) % page_bytes();
}

}  // namespace

bool is_remote(const std::string& path) {
  struct statfs status = {};
  return statfs(path.c_str(), &status) == 0 && is_remote(status);
}

FileDescriptor::FileDescriptor(const std::string& path)
    : path_(path), number_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)) {
  if (number_ < 0) throw_os_error(errno, "cannot open", path);
  struct stat status = {};
  if (fstat(number_, &status) != 0) {
    const int code = errno;
    close(number_);
    throw_os_error(code, "cannot stat", path);
  }
  if (!S_ISREG(status.st_mode)) {  // reading a pipe could block
    close(number_);
    throw_os_error(EINVAL, "not a regular file", path);
  }
  size_bytes_ = status.st_size;
  identity_ = {status.st_dev, status.st_ino,
               status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec};
}

FileDescriptor::~FileDescriptor() { close(number_); }

bool FileDescriptor::prefers_pread() const {
  struct statfs status = {};
  return fstatfs(number_, &status) != 0 || is_remote(status);
}

void FileDescriptor::advise_random() const { posix_fadvise(number_, 0, 0, POSIX_FADV_RANDOM); }

std::size_t FileDescriptor::read_at(std::int64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = pread(number_, out.data() + done, out.size() - done,
                                offset + static_cast<std::int64_t>(done));
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (count == 0) {
      break;
    } else if (errno != EINTR) {
      throw_os_error(errno, "cannot read", path_);
    }
  }
  return done;
}

std::int64_t FileDescriptor::current_size() const {
  struct stat status = {};
  return fstat(number_, &status) == 0 ? status.st_size : -1;
}

Mapping::Mapping(const FileDescriptor& file)
    : data_(nullptr), size_(static_cast<std::size_t>(file.size_bytes())) {
  void* data = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.number(), 0);
  if (data == MAP_FAILED) {
    const int code = errno;
    throw_os_error(code,
                   code == ENOMEM ? "cannot map (is vm.max_map_count reached?)" : "cannot map",
                   file.path());
  }
  data_ = static_cast<const std::byte*>(data);
}

Mapping::~Mapping() { munmap(const_cast<std::byte*>(data_), size_); }

void Mapping::will_need(const std::byte* data, std::size_t size) {
  const std::byte* start = page_start(data);
  madvise(const_cast<std::byte*>(start), static_cast<std::size_t>(data - start) + size,
          MADV_WILLNEED);
}

bool Mapping::resident(const std::byte* data) {
  unsigned char state = 0;
  const int result = mincore(const_cast<std::byte*>(page_start(data)), 1, &state);
  return result == 0 && (state & 1) != 0;
}

}  // namespace fastload
