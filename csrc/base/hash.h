// Hashes of 64 bits: random numbers that are functions of a key. All functions are thread-safe.
#pragma once

#include <cstdint>

namespace fastload {

// 2^64 divided by the golden ratio: the increment of SplitMix64.
inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Combines the parts of a key so that (seed, epoch) = (1, 0) and (0, 1) give unrelated keys.
// `stream` separates uses of one seed and epoch: 0, 1, 2, ... for the order of samples, and from
// 2^64 - 1 down for transforms.
constexpr std::uint64_t hash_key(std::uint64_t seed, std::uint64_t epoch, std::uint64_t stream) {
  std::uint64_t key = mix(seed + kGolden);
  key = mix(key ^ mix(epoch + 2 * kGolden));
  return mix(key ^ mix(stream + 3 * kGolden));
}

}  // namespace fastload
