#include "storage/file_cache.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "base/error.h"

namespace fastload {
namespace {

// A file may grow.
bool was_replaced(const FileIdentity& known, const FileDescriptor& now, std::int64_t size_bytes) {
  const FileIdentity& found = now.identity();
  return found.device != known.device || found.inode != known.inode ||
         (found.modified_ns != known.modified_ns && now.size_bytes() == size_bytes);
}

}  // namespace

OpenFileLimits OpenFileLimits::of_this_process() {
  std::size_t max_maps = 65530;
  std::ifstream("/proc/sys/vm/max_map_count") >> max_maps;
  rlimit files = {};
  const bool known = getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY;
  const std::size_t max_files = known ? static_cast<std::size_t>(files.rlim_cur) : 1024;
  // The process and its other loaders need mappings and descriptors, too: a quarter and an eighth
  // leave room for some loaders. A file rarely needs a descriptor once it is mapped.
  return {std::clamp<std::size_t>(max_maps / 4, 16, 1 << 16),
          std::clamp<std::size_t>(max_files / 8, 4, 256)};
}

std::int32_t FileCache::add(std::string path, std::int64_t size_bytes,
                            std::optional<FileIdentity> identity) {
  std::string folder = path.substr(0, path.rfind('/') + 1);
  if (io_ == Io::kAuto && (names_.empty() || folder != folder_)) {
    if (is_remote(folder.empty() ? "." : folder)) may_stall_.store(true);
    folder_ = std::move(folder);
  }
  File file;
  file.identity = identity;
  MutexLock lock(mutex_);
  files_.push_back(std::move(file));
  names_.push_back({std::move(path), size_bytes});
  return static_cast<std::int32_t>(names_.size() - 1);
}

std::shared_ptr<const FileDescriptor> FileCache::open(const Name& name, File& file) {
  auto descriptor = std::make_shared<const FileDescriptor>(name.path);
  if (file.identity && was_replaced(*file.identity, *descriptor, name.size_bytes)) {
    throw_os_error(ESTALE,
                   "the file was replaced after the dataset was opened; open the dataset again",
                   name.path);
  }
  if (descriptor->size_bytes() < name.size_bytes) {
    throw FormatError("'" + name.path + "' has " + std::to_string(descriptor->size_bytes()) +
                      " bytes, it had " + std::to_string(name.size_bytes) +
                      " when the dataset was opened: it was cut short");
  }
  if (!file.seen) {
    file.seen = true;
    file.identity = descriptor->identity();
    file.by_pread = io_ == Io::kPread || (io_ == Io::kAuto && descriptor->prefers_pread());
    if (file.by_pread) may_stall_.store(true);
  }
  return descriptor;
}

std::shared_ptr<const Mapping> FileCache::mapping(std::int32_t number) {
  MutexLock lock(mutex_);
  File& file = files_[static_cast<std::size_t>(number)];
  if (file.mapping) {
    mapped_.splice(mapped_.begin(), mapped_, file.mapping_place);
    return file.mapping;
  }
  if (file.by_pread) return nullptr;
  const auto descriptor = open(at(number), file);
  if (file.by_pread) return nullptr;
  while (!mapped_.empty() && mapped_.size() >= limits_.mappings) {
    files_[static_cast<std::size_t>(mapped_.back())].mapping.reset();
    mapped_.pop_back();
  }
  try {
    file.mapping = std::make_shared<const Mapping>(*descriptor);
  } catch (const OsError& error) {
    if (error.code() != ENOMEM) throw;
    file.by_pread = true;  // vm.max_map_count is reached: pread is slower but works
    return nullptr;
  }
  mapped_.push_front(number);
  file.mapping_place = mapped_.begin();
  return file.mapping;
}

std::string FileCache::why_unreadable(std::int32_t file) const {
  struct stat status = {};
  if (stat(path(file).c_str(), &status) == 0 && status.st_size < size_bytes(file)) {
    return "the file was cut to " + std::to_string(status.st_size) + " bytes while it was in use";
  }
  return "its storage failed";
}

std::shared_ptr<const FileDescriptor> FileCache::descriptor(std::int32_t number) {
  MutexLock lock(mutex_);
  File& file = files_[static_cast<std::size_t>(number)];
  if (file.descriptor) {
    opened_.splice(opened_.begin(), opened_, file.descriptor_place);
    return file.descriptor;
  }
  auto descriptor = open(at(number), file);
  while (!opened_.empty() && opened_.size() >= limits_.descriptors) {
    files_[static_cast<std::size_t>(opened_.back())].descriptor.reset();
    opened_.pop_back();
  }
  // Of a mapped file only scattered small rows are read this way.
  if (!file.by_pread) descriptor->advise_random();
  file.descriptor = descriptor;
  opened_.push_front(number);
  file.descriptor_place = opened_.begin();
  return descriptor;
}

}  // namespace fastload
