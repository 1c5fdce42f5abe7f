#include "order/occurrences.h"

#include <algorithm>

#include "base/hash.h"

namespace fastload {
namespace {

// A byte that counts no further; the rest is in counts_.
constexpr std::uint8_t kFull = 255;
// From one entry for this many rows on, a byte for each row takes no more memory than the entries.
constexpr std::int64_t kRowsOfEntry = 32;

}  // namespace

void Occurrences::count(std::span<const std::int64_t> indices, std::vector<std::int64_t>* draws) {
  if (draws != nullptr) draws->clear();
  for (const std::int64_t index : indices) {
    const std::uint64_t before = count_one(index);
    if (draws != nullptr) draws->push_back(before == 0 ? index : repeat_draw(index, before));
  }
}

// Returns how often the index came before.
std::uint64_t Occurrences::count_one(std::int64_t index) {
  if (static_cast<std::uint64_t>(index) < bytes_.size()) {
    std::uint8_t& count = bytes_[static_cast<std::size_t>(index)];
    return count < kFull ? count++ : kFull + counts_[index]++;
  }
  const std::uint64_t before = counts_[index]++;
  const auto entries = static_cast<std::int64_t>(counts_.size());
  if (bytes_.empty() && rows_ > 0 && entries > rows_ / kRowsOfEntry) take_bytes();
  return before;
}

void Occurrences::take_bytes() {
  bytes_.resize(static_cast<std::size_t>(rows_));
  std::unordered_map<std::int64_t, std::uint64_t> rest;
  for (const auto& [index, count] : counts_) {
    if (index < 0 || index >= rows_) {  // the engine has not checked them yet
      rest[index] = count;
      continue;
    }
    bytes_[static_cast<std::size_t>(index)] =
        static_cast<std::uint8_t>(std::min<std::uint64_t>(count, kFull));
    if (count > kFull) rest[index] = count - kFull;
  }
  counts_ = std::move(rest);
}

std::int64_t repeat_draw(std::int64_t index, std::uint64_t before) {
  const std::uint64_t bits =
      mix(mix(static_cast<std::uint64_t>(index) + kGolden) ^ mix(before + 2 * kGolden));
  return static_cast<std::int64_t>(bits | std::uint64_t{1} << 63);
}

}  // namespace fastload
