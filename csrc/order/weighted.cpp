#include "order/weighted.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

#include "base/hash.h"

namespace fastload {
namespace {

// The sum of the integer weights lies in [2^61, 2^62].
constexpr int kSumBits = 62;

// Throws for the first weight that is negative or not finite.
template <class Float>
Float largest_of(std::span<const Float> weights) {
  Float largest = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0) || std::isinf(weights[i])) {
      throw std::invalid_argument("weights[" + std::to_string(i) + "] is " +
                                  std::to_string(weights[i]) +
                                  ": weights must be finite and not negative");
    }
    largest = std::max(largest, weights[i]);
  }
  return largest;
}

}  // namespace

WeightTable::WeightTable(std::span<const double> weights) { add_up(weights); }
WeightTable::WeightTable(std::span<const float> weights) { add_up(weights); }

template <class Float>
void WeightTable::add_up(std::span<const Float> weights) {
  const Float largest = largest_of(weights);
  if (!(largest > 0))
    throw std::invalid_argument("at least one weight must be above 0, got " +
                                std::to_string(weights.size()) + " weights without one");
  int exponent = 0;
  std::frexp(static_cast<double>(largest), &exponent);
  double sum = 0;  // in [0.5, size), so that it cannot overflow; only its order of magnitude counts
  for (const Float weight : weights) sum += std::ldexp(static_cast<double>(weight), -exponent);
  int sum_exponent = 0;
  std::frexp(sum, &sum_exponent);
  const int shift = kSumBits - sum_exponent - exponent;
  sums_.resize(weights.size());
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double units = std::ldexp(static_cast<double>(weights[i]), shift);
    total += static_cast<std::uint64_t>(std::llround(units));
    sums_[i] = total;
  }
  finish();
}

WeightTable WeightTable::of_sums(std::vector<std::uint64_t> sums) {
  WeightTable table;
  table.sums_ = std::move(sums);
  if (table.sums_.empty() || table.sums_.back() == 0 ||
      !std::is_sorted(table.sums_.begin(), table.sums_.end())) {
    throw std::invalid_argument(
        "packed weights are damaged: their sums must be increasing and end above 0");
  }
  table.finish();
  return table;
}

void WeightTable::finish() {
  std::uint64_t hash = mix(sums_.size());
  for (const std::uint64_t sum : sums_) hash = mix(hash ^ sum);
  fingerprint_ = hash;
}

// Searches for several at a time, without branches, so that their reads of memory overlap.
template <std::size_t kLanes>
void WeightTable::search(const std::uint64_t* bits, std::int64_t* out) const {
  const std::uint64_t* const sums = sums_.data();
  std::array<std::uint64_t, kLanes> number{};
  std::array<std::size_t, kLanes> first{};  // the index lies in [first, first + count)
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    number[lane] = static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits[lane]) *
                                               static_cast<unsigned __int128>(sums_.back())) >>
                                              64);
  }
  for (std::size_t count = sums_.size(); count > 1;) {
    const std::size_t half = count / 2;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      first[lane] += sums[first[lane] + half - 1] <= number[lane] ? half : 0;
    }
    count -= half;
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    out[lane] = static_cast<std::int64_t>(first[lane]);
  }
}

std::int64_t WeightTable::index_at(std::uint64_t bits) const {
  std::int64_t index = 0;
  search<1>(&bits, &index);
  return index;
}

void WeightTable::indices_from(std::uint64_t key, std::uint64_t first,
                               std::span<std::int64_t> out) const {
  // One at a time takes 64 ns an index with 10^3 weights, 285 with 10^6, 1450 with 2^25; sixteen
  // take 8, 46 and 270.
  constexpr std::size_t kLanes = 16;
  const auto bits_at = [&](std::size_t i) { return mix(key + kGolden * (first + i + 1)); };
  std::array<std::uint64_t, kLanes> bits{};
  std::size_t done = 0;
  for (; done + kLanes <= out.size(); done += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) bits[lane] = bits_at(done + lane);
    search<kLanes>(bits.data(), &out[done]);
  }
  for (; done < out.size(); ++done) out[done] = index_at(bits_at(done));
}

}  // namespace fastload
