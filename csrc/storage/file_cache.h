// The open files of a table: opened at first use, up to a limit.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "storage/mapped_file.h"

namespace fastload {

// The limits of this process: mappings well under vm.max_map_count, descriptors well under
// RLIMIT_NOFILE, since the training script needs some of both.
struct OpenFileLimits {
  std::size_t mappings;
  std::size_t descriptors;
  static OpenFileLimits of_this_process();
};

// Files by number, as mappings or descriptors; the least recently used ones are closed beyond the
// limits. What it returns stays open while it is held. Opening a file that was replaced since the
// dataset was opened throws OsError; one that became shorter, FormatError. Thread-safe.
class FileCache {
 public:
  explicit FileCache(Io io, OpenFileLimits limits = OpenFileLimits::of_this_process())
      : io_(io), limits_(limits), may_stall_(io == Io::kPread) {}

  // `identity`: the file at the time when the dataset was opened; none: any file is accepted.
  // REQUIRES: not concurrent with anything else.
  std::int32_t add(std::string path, std::int64_t size_bytes,
                   std::optional<FileIdentity> identity = {});

  const std::string& path(std::int32_t file) const { return at(file).path; }
  std::int64_t size_bytes(std::int32_t file) const { return at(file).size_bytes; }

  // Whether some file is read by pread, which may wait for a server forever, and signals do not end
  // such a wait. Under Io::kAuto it is known from the folders, and once a link that leaves them has
  // been opened.
  bool may_stall() const { return may_stall_.load(); }

  // The mapping of a file, or nullptr if it is to be read by pread. Throws OsError, FormatError.
  std::shared_ptr<const Mapping> mapping(std::int32_t file);
  // The reason why a file cannot be read, for a message.
  std::string why_unreadable(std::int32_t file) const;
  // A descriptor of the same file. Throws OsError, FormatError.
  std::shared_ptr<const FileDescriptor> descriptor(std::int32_t file);

 private:
  struct Name {
    std::string path;
    std::int64_t size_bytes;
  };
  struct File {
    std::optional<FileIdentity> identity;
    bool seen = false;  // opened once: `by_pread` is known
    bool by_pread = false;
    std::shared_ptr<const Mapping> mapping;
    std::shared_ptr<const FileDescriptor> descriptor;
    std::list<std::int32_t>::iterator mapping_place;
    std::list<std::int32_t>::iterator descriptor_place;
  };

  const Name& at(std::int32_t file) const { return names_.at(static_cast<std::size_t>(file)); }
  std::shared_ptr<const FileDescriptor> open(const Name& name, File& file) FL_REQUIRES(mutex_);

  const Io io_;
  const OpenFileLimits limits_;
  std::atomic<bool> may_stall_;
  std::vector<Name> names_;  // by number; constant after the last add()
  std::string folder_;       // of the file that was added last; used by add() only
  Mutex mutex_;
  std::vector<File> files_ FL_GUARDED_BY(mutex_);         // by number
  std::list<std::int32_t> mapped_ FL_GUARDED_BY(mutex_);  // most recently used first
  std::list<std::int32_t> opened_ FL_GUARDED_BY(mutex_);
};

}  // namespace fastload
