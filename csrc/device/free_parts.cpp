#include "device/free_parts.h"

#include <iterator>
#include <new>

#include "base/bytes.h"

namespace fastload {

void FreeParts::insert(std::byte* data, std::size_t bytes) {
  const auto part = by_address_.emplace(data, bytes).first;
  try {
    by_size_.emplace(bytes, data);
  } catch (...) {
    by_address_.erase(part);
    throw;
  }
  bytes_ += bytes;
}

void FreeParts::erase(std::map<std::byte*, std::size_t>::iterator part) {
  bytes_ -= part->second;
  by_size_.erase({part->second, part->first});
  by_address_.erase(part);
}

void FreeParts::add_slab(std::byte* data, std::size_t bytes) {
  const auto slab = slabs_.emplace(data, bytes).first;
  try {
    insert(data, bytes);
  } catch (...) {
    slabs_.erase(slab);
    throw;
  }
  poison(data, bytes);
}

std::byte* FreeParts::take(std::size_t bytes) {
  const auto found = by_size_.lower_bound({bytes, nullptr});
  if (found == by_size_.end()) return nullptr;
  const auto [size, data] = *found;
  // The rest is inserted first: if that throws, nothing has changed.
  if (size > bytes) insert(data + bytes, size - bytes);
  bytes_ -= size;
  by_size_.erase(found);
  by_address_.erase(data);
  unpoison(data, bytes);
  return data;
}

void FreeParts::give(std::byte* data, std::size_t bytes) noexcept {
  poison(data, bytes);
  const auto next = by_address_.lower_bound(data);
  if (next != by_address_.begin() && !slabs_.contains(data)) {
    const auto before = std::prev(next);
    if (before->first + before->second == data) {
      data = before->first;
      bytes += before->second;
      erase(before);
    }
  }
  if (next != by_address_.end() && next->first == data + bytes && !slabs_.contains(next->first)) {
    bytes += next->second;
    erase(next);
  }
  try {
    insert(data, bytes);
  } catch (const std::bad_alloc&) {
    // The part cannot be used again before its slab is freed.
  }
}

bool FreeParts::contains(const std::byte* data) const {
  const auto above = slabs_.upper_bound(data);
  if (above == slabs_.begin()) return false;
  const auto slab = std::prev(above);
  return data < slab->first + slab->second;
}

}  // namespace fastload
