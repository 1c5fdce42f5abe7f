// Samples indices with replacement by weight: a random number gives an index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fastload {

// Weights as integers, added up: index i has those numbers below total() that lie in
// [sum of the weights before i, sum with i). All weights are scaled by one power of two, so that
// their sum lies in [2^61, 2^62], and rounded once to an integer; sums of integers are exact. So
// the probability of each index is right to 2^-62, however many there are, and neither small nor
// large weights (from 5e-324 to 1.7e308) are lost unless their
// probability is below 2^-62. Values never change between versions, since checkpoints depend on
// them. A value; const methods may be called
// from any thread.
class WeightTable {
 public:
  // Keeps 8 bytes for each weight. Throws std::invalid_argument naming the first weight that is
  // negative or not finite, or if no weight is above 0.
  explicit WeightTable(std::span<const double> weights);
  explicit WeightTable(std::span<const float> weights);
  // Makes a table from the sums() of another one. Throws std::invalid_argument for anything else.
  static WeightTable of_sums(std::vector<std::uint64_t> sums);

  std::int64_t size() const { return static_cast<std::int64_t>(sums_.size()); }
  // Returns the index for 64 random bits, in O(log size()). Its weight is not 0.
  std::int64_t index_at(std::uint64_t bits) const;
  // out[i] = index_at(mix(key + kGolden * (first + i + 1))), see base/hash.h.
  void indices_from(std::uint64_t key, std::uint64_t first, std::span<std::int64_t> out) const;
  // Differs between weights that give different indices; equal if they differ by a power of two.
  std::uint64_t fingerprint() const { return fingerprint_; }
  std::span<const std::uint64_t> sums() const { return sums_; }

 private:
  WeightTable() = default;
  template <class Float>
  void add_up(std::span<const Float> weights);
  void finish();
  template <std::size_t kLanes>
  void search(const std::uint64_t* bits, std::int64_t* out) const;

  std::vector<std::uint64_t> sums_;  // sums_[i]: of weights 0 to i
  std::uint64_t fingerprint_ = 0;
};

}  // namespace fastload
