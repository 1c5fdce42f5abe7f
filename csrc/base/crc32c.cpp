#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace fastload {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // bit-reflected

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

constexpr auto kTable = make_table();

// Product of two reflected polynomials modulo the CRC's.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 0x80000000; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ ((b & 1) ? kPolynomial : 0);
  }
  return product;
}

#if defined(__x86_64__)
#define FL_CRC_TARGET __attribute__((target("sse4.2")))
bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
FL_CRC_TARGET std::uint32_t step8(std::uint32_t crc, std::uint64_t word) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
}
FL_CRC_TARGET std::uint32_t step1(std::uint32_t crc, std::uint8_t byte) {
  return _mm_crc32_u8(crc, byte);
}
#elif defined(__aarch64__)
#define FL_CRC_TARGET __attribute__((target("+crc")))
bool has_instruction() { return (getauxval(AT_HWCAP) & (1UL << 7)) != 0; }  // HWCAP_CRC32
FL_CRC_TARGET std::uint32_t step8(std::uint32_t crc, std::uint64_t word) {
  return __crc32cd(crc, word);
}
FL_CRC_TARGET std::uint32_t step1(std::uint32_t crc, std::uint8_t byte) {
  return __crc32cb(crc, byte);
}
#endif

#if defined(FL_CRC_TARGET)
FL_CRC_TARGET std::uint32_t crc32c_instruction(std::span<const std::byte> data, std::uint32_t crc) {
  crc = ~crc;
  const std::byte* at = data.data();
  std::size_t left = data.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    crc = step8(crc, word);
  }
  for (; left > 0; --left, ++at) crc = step1(crc, static_cast<std::uint8_t>(*at));
  return ~crc;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t crc) {
  crc = ~crc;
  for (std::byte byte : data) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint8_t>(byte)) & 0xFF];
  }
  return ~crc;
}

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc) {
#if defined(FL_CRC_TARGET)
  static const bool instruction = has_instruction();
  if (instruction) return crc32c_instruction(data, crc);
#endif
  return crc32c_portable(data, crc);
}

std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b) {
  std::uint32_t power = 0x80000000;   // x^0
  std::uint32_t square = 0x00800000;  // x^8: one byte
  for (; length_b != 0; length_b >>= 1) {
    if (length_b & 1) power = multiply(power, square);
    square = multiply(square, square);
  }
  return multiply(power, crc_a) ^ crc_b;
}

}  // namespace fastload
