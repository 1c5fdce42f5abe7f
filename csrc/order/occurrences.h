// Which time it is in an epoch that an index comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace fastload {

// Counts the indices of an epoch in their order, and gives each time that one comes a draw of its
// own (IndexSpan): the index itself the first time, repeat_draw() later. So what is drawn for
// samples that come once does not depend on whether anybody counts. Few indices take about 40 bytes
// each; many of [0, rows) take 1 byte for each row. One thread at a time.
class Occurrences {
 public:
  explicit Occurrences(std::int64_t rows) : rows_(rows) {}
  // Counts `indices` as the next ones; `draws`: nullptr, or gets theirs.
  void count(std::span<const std::int64_t> indices, std::vector<std::int64_t>* draws = nullptr);

 private:
  std::uint64_t count_one(std::int64_t index);
  void take_bytes();

  const std::int64_t rows_;
  std::vector<std::uint8_t> bytes_;  // of each row, from when many came; kFull: counts_ goes on
  std::unordered_map<std::int64_t, std::uint64_t> counts_;
};

// The draw of an index that came `before` > 0 times: no index, for it is negative.
std::int64_t repeat_draw(std::int64_t index, std::uint64_t before);

}  // namespace fastload
