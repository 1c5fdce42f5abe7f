#include "order/weighted.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "base/hash.h"

namespace fastload {
namespace {

constexpr int kSumBits = 62;

// Throws for the first weight that is none.
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
  if (!(largest > 0)) throw std::invalid_argument("no weight is above 0: nothing can be drawn");
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
    throw std::invalid_argument("not the sums of weights");
  }
  table.finish();
  return table;
}

void WeightTable::finish() {
  std::uint64_t hash = mix(sums_.size());
  for (const std::uint64_t sum : sums_) hash = mix(hash ^ sum);
  fingerprint_ = hash;
}

std::int64_t WeightTable::index_at(std::uint64_t bits) const {
  const auto number = static_cast<std::uint64_t>(
      (static_cast<unsigned __int128>(bits) * static_cast<unsigned __int128>(sums_.back())) >> 64);
  return std::upper_bound(sums_.begin(), sums_.end(), number) - sums_.begin();
}

}  // namespace fastload
