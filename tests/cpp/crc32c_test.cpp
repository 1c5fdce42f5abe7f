#include "base/crc32c.h"

#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "check.h"

using namespace fastload;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

int main() {
  std::mt19937_64 random(1);
  std::vector<std::byte> data(5000);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());

  check::promise("the vectors of RFC 3720", [] {
    std::vector<std::byte> rising(32), falling(32);
    for (std::size_t i = 0; i < 32; ++i) {
      rising[i] = static_cast<std::byte>(i);
      falling[i] = static_cast<std::byte>(31 - i);
    }
    for (auto crc : {&crc32c, &crc32c_portable}) {
      CHECK_EQUAL(crc({}, 0), 0);
      CHECK_EQUAL(crc(bytes_of("123456789"), 0), 0xE3069283);
      CHECK_EQUAL(crc(std::vector<std::byte>(32, std::byte{0}), 0), 0x8A9136AA);
      CHECK_EQUAL(crc(std::vector<std::byte>(32, std::byte{0xFF}), 0), 0x62A8AB43);
      CHECK_EQUAL(crc(rising, 0), 0x46DD794E);
      CHECK_EQUAL(crc(falling, 0), 0x113FDB5C);
    }
  });

  check::promise("with and without the CPU's instruction: equal at every length and alignment",
                 [&] {
                   for (std::size_t start = 0; start < 17; ++start) {
                     for (std::size_t length = 0; length <= 300; ++length) {
                       const std::span part(data.data() + start, length);
                       CHECK_EQUAL(crc32c(part, 0), crc32c_portable(part, 0));
                       CHECK_EQUAL(crc32c(part, 0xDEADBEEF), crc32c_portable(part, 0xDEADBEEF));
                     }
                   }
                   CHECK_EQUAL(crc32c(data), crc32c_portable(data));
                 });

  check::promise("continuing from a CRC is the CRC of the whole, and so is combining two", [&] {
    const std::span<const std::byte> all(data);
    const std::uint32_t whole = crc32c(all);
    for (std::size_t cut = 0; cut <= all.size(); cut += cut < 40 ? 1 : 97) {
      const auto head = all.first(cut), tail = all.subspan(cut);
      CHECK_EQUAL(crc32c(tail, crc32c(head)), whole);
      CHECK_EQUAL(crc32c_combine(crc32c(head), crc32c(tail), tail.size()), whole);
    }
  });

  check::promise("combining works for lengths that nobody can hold in memory", [] {
    const std::uint32_t a = 0x12345678;
    // CRCs of zeros, doubled: 2^40 zero bytes in 40 steps.
    std::uint32_t zeros = crc32c_portable(std::vector<std::byte>(1), 0);
    for (int k = 0; k < 40; ++k) zeros = crc32c_combine(zeros, zeros, std::uint64_t{1} << k);
    const std::uint64_t length = std::uint64_t{1} << 40;
    std::uint32_t left = crc32c_combine(a, zeros, length);
    std::uint32_t right = a;
    std::uint32_t half = crc32c_portable(std::vector<std::byte>(1), 0);
    for (int k = 0; k < 39; ++k) half = crc32c_combine(half, half, std::uint64_t{1} << k);
    for (int i = 0; i < 2; ++i) right = crc32c_combine(right, half, length / 2);
    CHECK_EQUAL(left, right);
  });
}
