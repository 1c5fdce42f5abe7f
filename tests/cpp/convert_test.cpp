#include "batch/convert.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "batch/copy.h"
#include "check.h"

using namespace fastload;

namespace {

constexpr std::size_t kCanary = 256;
constexpr std::size_t kWide = sizeof(std::int64_t);

const std::vector<Stored> kKinds{Stored::kU8,  Stored::kI8,  Stored::kU16,
                                 Stored::kI16, Stored::kU32, Stored::kI32};

// Number `i` at `data`, the slow way.
std::int64_t number_at(Stored stored, const std::byte* data, std::size_t i) {
  const auto bytes = static_cast<std::size_t>(stored_bytes(stored));
  std::uint64_t value = 0;
  for (std::size_t b = 0; b < bytes; ++b) {
    value |= static_cast<std::uint64_t>(data[i * bytes + b]) << (8 * b);
  }
  const bool is_signed = stored == Stored::kI8 || stored == Stored::kI16 || stored == Stored::kI32;
  const std::uint64_t half = std::uint64_t{1} << (8 * bytes - 1);
  if (is_signed && value >= half) value -= 2 * half;
  return static_cast<std::int64_t>(value);
}

// Memory whose ends are watched: what is read must lie inside (for sanitizers), what is written
// too.
class Arena {
 public:
  Arena(std::size_t bytes, std::size_t misalignment)
      : bytes_(bytes), memory_(bytes + 2 * kCanary + 128, std::byte{0xA5}) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kCanary;
    data_ = memory_.data() + kCanary + (64 - address % 64) % 64 + misalignment;
  }
  std::byte* data() { return data_; }
  bool intact() const {
    const auto untouched = [](const std::byte* begin, const std::byte* end) {
      return std::all_of(begin, end, [](std::byte byte) { return byte == std::byte{0xA5}; });
    };
    return untouched(memory_.data(), data_) &&
           untouched(data_ + bytes_, memory_.data() + memory_.size());
  }

 private:
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::byte* data_;
};

// Runs of the given lengths from odd places of `source`, side by side at the misaligned `out`.
void check_convert(const CopyKernel& kernel, Stored stored, const std::vector<std::byte>& source,
                   const std::vector<std::size_t>& counts, std::size_t from, std::size_t to) {
  const auto item = static_cast<std::size_t>(stored_bytes(stored));
  std::size_t total = 0;
  for (std::size_t count : counts) total += count;
  Arena out(total * kWide, to);
  std::vector<Run> runs;
  std::size_t done = 0;
  for (std::size_t count : counts) {
    const std::size_t at = (from + 37 * done) % (source.size() - count * item + 1);
    runs.push_back({source.data() + at, out.data() + done * kWide, count * item});
    done += count;
  }
  // The last one reads to the very end.
  if (!runs.empty()) runs.back().from = source.data() + source.size() - runs.back().bytes;
  kernel.convert_runs.of(stored)(runs);
  const std::string what = std::string(kernel.name) + ", kind " +
                           std::to_string(static_cast<int>(stored)) + ", " +
                           std::to_string(counts.empty() ? 0 : counts[0]) + " numbers from " +
                           std::to_string(from) + " to " + std::to_string(to);
  for (const Run& run : runs) {
    for (std::size_t i = 0; i < run.bytes / item; ++i) {
      std::int64_t got = 0;
      std::memcpy(&got, run.out + i * kWide, kWide);
      if (got != number_at(stored, run.from, i)) check::fail(__FILE__, __LINE__, what);
    }
  }
  if (!out.intact()) check::fail(__FILE__, __LINE__, what + ": wrote outside");
}

}  // namespace

int main() {
  std::mt19937_64 random(7);
  std::vector<std::byte> source(1 << 18);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());

  for (const CopyKernel& kernel : copy_kernels()) {
    const auto promise = [&](const std::string& text, auto body) {
      check::promise((std::string(kernel.name) + ": " + text).c_str(), body);
    };
    promise("0 to 200 numbers of each kind, from and to any address", [&] {
      for (Stored stored : kKinds) {
        for (std::size_t count = 0; count <= 200; ++count) {
          for (std::size_t from : {0, 1, 2, 3, 5, 8}) {
            check_convert(kernel, stored, source, {count}, from, 8 * (count % 8));
            check_convert(kernel, stored, source, {count}, from, 0);
          }
          check_convert(kernel, stored, source, {count}, 1, 1 + count % 63);
        }
      }
    });
    promise("runs of different lengths, many and none", [&] {
      for (Stored stored : kKinds) {
        check_convert(kernel, stored, source, {}, 0, 0);
        std::vector<std::size_t> counts;
        for (std::size_t i = 0; i < 100; ++i) {
          counts.push_back(random() % (i % 9 == 0 ? 4000 : 40));
          check_convert(kernel, stored, source, counts, i, 8 * (i % 8));
        }
      }
    });
    // Together they are more than the second cache holds, which is when lines are streamed.
    promise("large batches of long and short runs, at every alignment", [&] {
      for (Stored stored : kKinds) {
        for (std::size_t to : {0, 8, 24, 56, 3}) {
          std::vector<std::size_t> counts;
          for (std::size_t size : {1, 2, 8, 128, 256, 1024, 2048, 8192, 50'000}) {
            for (std::size_t count : {size - 1, size, size + 1, size + 8}) counts.push_back(count);
          }
          check_convert(kernel, stored, source, counts, to + 1, to);
          check_convert(kernel, stored, source, std::vector<std::size_t>(200, 1024), to, to);
        }
      }
    });
  }

  check::promise("the smallest and the largest number of each kind", [] {
    for (const CopyKernel& kernel : copy_kernels()) {
      for (Stored stored : kKinds) {
        std::vector<std::byte> ends;
        for (int fill : {0x00, 0xFF, 0x7F, 0x80}) {
          for (std::int64_t b = stored_bytes(stored); b > 1; --b) {
            ends.push_back(static_cast<std::byte>(fill == 0x7F ? 0xFF : fill == 0x80 ? 0 : fill));
          }
          ends.push_back(static_cast<std::byte>(fill));
        }
        check_convert(kernel, stored, ends, {4}, 0, 0);
      }
    }
  });
}
