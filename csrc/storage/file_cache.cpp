#include "storage/file_cache.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "base/error.h"

namespace fastload {

OpenFileLimits OpenFileLimits::of_this_process() {
  std::size_t max_maps = 65530;
  std::ifstream("/proc/sys/vm/max_map_count") >> max_maps;
  rlimit files = {};
  const bool known = getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY;
  const std::size_t max_files = known ? static_cast<std::size_t>(files.rlim_cur) : 1024;
  return {std::clamp<std::size_t>(max_maps / 4, 16, 1 << 16),
          std::clamp<std::size_t>(max_files / 8, 4, 256)};
}

std::int32_t FileCache::add(std::string path, std::int64_t size_bytes) {
  File file;
  file.path = std::move(path);
  file.size_bytes = size_bytes;
  files_.push_back(std::move(file));
  return static_cast<std::int32_t>(files_.size() - 1);
}

std::shared_ptr<const FileDescriptor> FileCache::open(File& file) {
  auto descriptor = std::make_shared<const FileDescriptor>(file.path);
  if (file.seen && (descriptor->device() != file.device || descriptor->inode() != file.inode)) {
    throw_os_error(ESTALE, "the file was replaced while it was in use; open the dataset again",
                   file.path);
  }
  if (descriptor->size_bytes() < file.size_bytes) {
    throw FormatError("'" + file.path + "' has " + std::to_string(descriptor->size_bytes()) +
                      " bytes, it had " + std::to_string(file.size_bytes) +
                      " when the dataset was opened: it was cut short");
  }
  if (!file.seen) {
    file.seen = true;
    file.device = descriptor->device();
    file.inode = descriptor->inode();
    file.by_pread = io_ == Io::kPread || (io_ == Io::kAuto && descriptor->prefers_pread());
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
  const auto descriptor = open(file);
  if (file.by_pread) return nullptr;
  while (!mapped_.empty() && mapped_.size() >= limits_.mappings) {
    files_[static_cast<std::size_t>(mapped_.back())].mapping.reset();
    mapped_.pop_back();
  }
  try {
    file.mapping = std::make_shared<const Mapping>(*descriptor);
  } catch (const OsError& error) {
    if (error.code() != ENOMEM) throw;
    file.by_pread = true;  // vm.max_map_count is reached: slower beats dead
    return nullptr;
  }
  mapped_.push_front(number);
  file.mapping_place = mapped_.begin();
  return file.mapping;
}

std::shared_ptr<const FileDescriptor> FileCache::descriptor(std::int32_t number) {
  MutexLock lock(mutex_);
  File& file = files_[static_cast<std::size_t>(number)];
  if (file.descriptor) {
    opened_.splice(opened_.begin(), opened_, file.descriptor_place);
    return file.descriptor;
  }
  auto descriptor = open(file);
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
