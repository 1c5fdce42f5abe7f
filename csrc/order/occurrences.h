// Counts how often each index came in an epoch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace fastload {

// Counts the indices of an epoch in their order, and makes a draw (IndexSpan) for each occurrence:
// the index itself the first time, repeat_draw() later. So random transforms of samples that come
// once are the same with and without counting. Few indices take about 40 bytes each; many of [0,
// rows) take 1 byte for each row. Not thread-safe.
class Occurrences {
 public:
  explicit Occurrences(std::int64_t rows) : rows_(rows) {}
  // Counts `indices` as the next ones, and sets `draws`, unless nullptr, to theirs.
  void count(std::span<const std::int64_t> indices, std::vector<std::int64_t>* draws = nullptr);

 private:
  std::uint64_t count_one(std::int64_t index);
  void take_bytes();

  const std::int64_t rows_;
  std::vector<std::uint8_t>
      bytes_;  // per row, once many indices came; from kFull on, counts_ continues
  std::unordered_map<std::int64_t, std::uint64_t> counts_;
};

// Returns the draw of an index that came `before` > 0 times: negative, so never an index.
std::int64_t repeat_draw(std::int64_t index, std::uint64_t before);

}  // namespace fastload
