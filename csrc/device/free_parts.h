// The book of a memory that is cut into parts.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace fastload {

// Which parts of some slabs nobody uses. All sizes are multiples of kFieldAlignment, all places
// aligned to it. Every call takes O(log n). Under AddressSanitizer free parts cannot be touched.
// Not thread-safe.
class FreeParts {
 public:
  // A new slab, all of it free.
  void add_slab(std::byte* data, std::size_t bytes);
  // The start of the tightest part, whose rest stays free; nullptr if none is large enough.
  std::byte* take(std::size_t bytes);
  // REQUIRES: take(bytes) gave it. Neighbours become one, within a slab: a copy engine must not
  // be sent across two pieces that were pinned one by one.
  void give(std::byte* data, std::size_t bytes) noexcept;
  // Whether it lies in a slab.
  bool contains(const std::byte* data) const;
  std::size_t bytes() const { return bytes_; }
  std::size_t count() const { return by_place_.size(); }

 private:
  void insert(std::byte* data, std::size_t bytes);
  void erase(std::map<std::byte*, std::size_t>::iterator part);

  std::map<const std::byte*, std::size_t> slabs_;
  std::map<std::byte*, std::size_t> by_place_;
  std::set<std::pair<std::size_t, std::byte*>> by_size_;
  std::size_t bytes_ = 0;
};

}  // namespace fastload
