// Files that are open for reading: mappings and descriptors.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fastload {

// How bytes are read: from a mapping, or by system calls (network and user-space file systems,
// whose mappings fail in ways a copy cannot survive).
enum class Io { kAuto, kMmap, kPread };

// Identifies a file independently of its name. The time is needed since file systems give the inode
// of a removed file to the next one.
struct FileIdentity {
  dev_t device;
  ino_t inode;
  std::int64_t modified_ns;
};

// Whether files at this path are read by pread under Io::kAuto: the file system is remote or lives
// in user space, so that a read may take forever. False if it cannot be determined.
bool is_remote(const std::string& path);

// An open descriptor. Neither copied nor moved: shared by shared_ptr. Thread-safe.
class FileDescriptor {
 public:
  // Throws OsError; EINVAL if it is not a regular file.
  explicit FileDescriptor(const std::string& path);
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t size_bytes() const { return size_bytes_; }
  const FileIdentity& identity() const { return identity_; }
  // Whether kAuto reads this file by pread: its file system is remote or lives in user space.
  bool prefers_pread() const;
  // Advises the kernel not to read ahead.
  void advise_random() const;
  // Fills `out` from `offset` on. Returns the bytes read: fewer at the end of the file. Throws
  // OsError.
  std::size_t read_at(std::int64_t offset, std::span<std::byte> out) const;
  // The size of the file now; -1 if it cannot be determined.
  std::int64_t current_size() const;
  int number() const { return number_; }

 private:
  std::string path_;
  int number_;
  std::int64_t size_bytes_ = 0;
  FileIdentity identity_ = {};
};

// A whole file, mapped read-only. The descriptor may be closed afterwards. Thread-safe.
class Mapping {
 public:
  // Throws OsError (ENOMEM: too many mappings). REQUIRES: file.size_bytes() > 0.
  explicit Mapping(const FileDescriptor& file);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Starts reading [data, data + size) into the page cache. REQUIRES: inside bytes().
  static void will_need(const std::byte* data, std::size_t size);
  // Whether the page that holds `data` is in the page cache.
  static bool resident(const std::byte* data);

 private:
  const std::byte* data_;
  std::size_t size_;
};

}  // namespace fastload
