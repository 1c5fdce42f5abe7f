// Keeps track of the free parts of slabs.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace fastload {

// A best-fit allocator over slabs. Sizes are multiples of kFieldAlignment, and addresses are
// aligned to it. Each call takes O(log n). Under AddressSanitizer free parts are poisoned.
// Not thread-safe: PinnedMemory guards it.
class FreeParts {
 public:
  // Adds a slab, all of it free. Throws std::bad_alloc, and then has changed nothing.
  void add_slab(std::byte* data, std::size_t bytes);
  // Takes `bytes` from the start of the smallest part that is large enough; the rest stays free.
  // Returns nullptr if there is none. Throws std::bad_alloc, and then has changed nothing.
  std::byte* take(std::size_t bytes);
  // Frees what take(bytes) returned. Merges it with free neighbours of the same slab only: a copy
  // must not cross slabs, which were pinned separately.
  void give(std::byte* data, std::size_t bytes) noexcept;
  // Whether an address lies in a slab.
  bool contains(const std::byte* data) const;
  // Free bytes, and the number of free parts.
  std::size_t bytes() const { return bytes_; }
  std::size_t count() const { return by_address_.size(); }

 private:
  void insert(std::byte* data, std::size_t bytes);
  void erase(std::map<std::byte*, std::size_t>::iterator part);

  std::map<const std::byte*, std::size_t> slabs_;
  std::map<std::byte*, std::size_t> by_address_;
  std::set<std::pair<std::size_t, std::byte*>> by_size_;
  std::size_t bytes_ = 0;
};

}  // namespace fastload
