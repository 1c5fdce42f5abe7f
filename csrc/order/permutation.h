// A permutation as a function, position -> index, with a key and O(1) memory.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace fastload {

// A bijection of [0, n): an (unbalanced) Feistel network over bit_width(n - 1) bits with cycle
// walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Less than two walks
// on average, since the domain is smaller than 2 n. Values never change between
// versions, since checkpoints depend on them. A value; const methods may be called from any thread.
class Permutation {
 public:
  static constexpr std::int64_t kMaxSize = std::int64_t{1} << 62;

  // REQUIRES: 1 <= n <= kMaxSize, else std::invalid_argument.
  Permutation(std::int64_t n, std::uint64_t key);

  std::int64_t size() const { return static_cast<std::int64_t>(n_); }
  // REQUIRES (all three): 0 <= position, index < size().
  std::int64_t index_at(std::int64_t position) const;
  std::int64_t position_of(std::int64_t index) const;
  // out[i] = index_at(first + i)
  void indices_from(std::int64_t first, std::span<std::int64_t> out) const;

 private:
  // Halves of a few bits mix slowly: with 6 rounds and n = 8 some pairs of neighbours occur 27 %
  // too often, and bias is measurable up to n = 1024. With these values the tests measure none.
  static constexpr int kRounds = 6;
  static constexpr int kSmallRounds = 24;
  static constexpr int kSmallBits = 12;

  std::uint64_t round(int i, std::uint64_t half, int out_bits) const;
  template <int kCount>
  std::uint64_t encrypt(std::uint64_t value) const;
  template <int kCount>
  std::uint64_t decrypt(std::uint64_t value) const;
  template <int kCount>
  void encrypt_block(std::span<std::uint64_t> values) const;
  void encrypt_block_wide(std::span<std::uint64_t> values) const;  // x86-64 only
  void encrypt_values(std::span<std::uint64_t> values) const;

  std::uint64_t n_;
  int left_bits_;
  int right_bits_;
  bool small_;  // whether kSmallRounds are needed
  std::array<std::uint64_t, kSmallRounds> keys_{};
};

}  // namespace fastload
