#include "order/permutation.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "base/hash.h"
#include "base/inline.h"

#if defined(__x86_64__) && !defined(FASTLOAD_SANITIZE)
#define FL_WIDE __attribute__((target("avx512f,avx512dq,avx512vl")))
#endif

namespace fastload {
namespace {

// Positions that are encrypted together. Three arrays of them, 6 KiB, stay in the first cache.
constexpr std::size_t kBlock = 256;

constexpr std::uint64_t mask(int bits) { return (std::uint64_t{1} << bits) - 1; }

}  // namespace

Permutation::Permutation(std::int64_t n, std::uint64_t key) : n_(static_cast<std::uint64_t>(n)) {
  if (n < 1 || n > kMaxSize) {
    throw std::invalid_argument("the size of a permutation must lie in [1, 2^62], got " +
                                std::to_string(n));
  }
  const int bits = static_cast<int>(std::bit_width(n_ - 1));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
  small_ = bits <= kSmallBits;
  for (int i = 0; i < (small_ ? kSmallRounds : kRounds); ++i) {
    keys_[static_cast<std::size_t>(i)] = mix(key + kGolden * static_cast<std::uint64_t>(i + 1));
  }
}

// The top `out_bits` bits of a keyed hash of one half; the double shift serves out_bits == 0.
FL_INLINE std::uint64_t Permutation::round(int i, std::uint64_t half, int out_bits) const {
  std::uint64_t x = (half ^ keys_[static_cast<std::size_t>(i)]) * kGolden;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ULL;
  return (x >> 1) >> (63 - out_bits);
}

template <int kCount>
FL_INLINE std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  std::uint64_t left = value >> right_bits_;
  std::uint64_t right = value & mask(right_bits_);
  for (int i = 0; i < kCount; i += 2) {
    left ^= round(i, right, left_bits_);
    right ^= round(i + 1, left, right_bits_);
  }
  return (left << right_bits_) | right;
}

template <int kCount>
inline std::uint64_t Permutation::decrypt(std::uint64_t value) const {
  std::uint64_t left = value >> right_bits_;
  std::uint64_t right = value & mask(right_bits_);
  for (int i = kCount - 2; i >= 0; i -= 2) {
    right ^= round(i + 1, left, right_bits_);
    left ^= round(i, right, left_bits_);
  }
  return (left << right_bits_) | right;
}

std::int64_t Permutation::index_at(std::int64_t position) const {
  auto value = static_cast<std::uint64_t>(position);
  do {
    value = small_ ? encrypt<kSmallRounds>(value) : encrypt<kRounds>(value);
  } while (value >= n_);
  return static_cast<std::int64_t>(value);
}

std::int64_t Permutation::position_of(std::int64_t index) const {
  auto value = static_cast<std::uint64_t>(index);
  do {
    value = small_ ? decrypt<kSmallRounds>(value) : decrypt<kRounds>(value);
  } while (value >= n_);
  return static_cast<std::int64_t>(value);
}

template <int kCount>
void Permutation::encrypt_block(std::span<std::uint64_t> values) const {
  for (std::uint64_t& value : values) value = encrypt<kCount>(value);
}

#if defined(FL_WIDE)
// encrypt_block<kRounds>() for eight values at a time: the compiler vectorises this loop.
FL_WIDE void Permutation::encrypt_block_wide(std::span<std::uint64_t> values) const {
  for (std::uint64_t& value : values) value = encrypt<kRounds>(value);
}
#endif

void Permutation::indices_from(std::int64_t first, std::span<std::int64_t> out) const {
  std::array<std::uint64_t, kBlock> values;
  std::array<std::uint64_t, kBlock> walking;
  std::array<std::size_t, kBlock> places;
  for (std::size_t done = 0; done < out.size(); done += kBlock) {
    const std::size_t count = std::min(kBlock, out.size() - done);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = static_cast<std::uint64_t>(first) + done + i;
    }
    encrypt_values({values.data(), count});
    // Values outside the domain are encrypted again, together: one after the other, each would wait
    // for its own chain of steps.
    std::size_t left = 0;
    for (std::size_t i = 0; i < count; ++i) {
      out[done + i] = static_cast<std::int64_t>(values[i]);
      walking[left] = values[i];
      places[left] = done + i;
      left += values[i] >= n_ ? 1 : 0;
    }
    while (left > 0) {
      encrypt_values({walking.data(), left});
      std::size_t still = 0;
      for (std::size_t i = 0; i < left; ++i) {
        out[places[i]] = static_cast<std::int64_t>(walking[i]);
        walking[still] = walking[i];
        places[still] = places[i];
        still += walking[i] >= n_ ? 1 : 0;
      }
      left = still;
    }
  }
}

void Permutation::encrypt_values(std::span<std::uint64_t> values) const {
  if (small_) return encrypt_block<kSmallRounds>(values);
#if defined(FL_WIDE)
  static const bool wide = __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (wide) return encrypt_block_wide(values);
#endif
  encrypt_block<kRounds>(values);
}

}  // namespace fastload
