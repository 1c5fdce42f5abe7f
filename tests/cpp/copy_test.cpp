#include "batch/copy.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

using namespace fastload;

namespace {

constexpr std::size_t kCanary = 256;

// Source rows at random places and alignments of a fixed buffer.
class Source {
 public:
  Source() : data_(1 << 20), random_(7) {
    for (std::byte& byte : data_) byte = static_cast<std::byte>(random_());
  }
  std::vector<const std::byte*> rows(std::size_t count, std::size_t row_bytes) {
    std::vector<const std::byte*> rows;
    for (std::size_t i = 0; i < count; ++i) {
      rows.push_back(data_.data() + random_() % (data_.size() - row_bytes + 1));
    }
    if (count > 0) rows.back() = data_.data() + data_.size() - row_bytes;  // reads to the very end
    return rows;
  }

 private:
  std::vector<std::byte> data_;
  std::mt19937_64 random_;
};

void check_copy(const CopyKernel& kernel, Source& source, std::size_t row_bytes, std::size_t count,
                std::size_t misalignment) {
  const std::size_t bytes = row_bytes * count;
  std::vector<std::byte> memory(bytes + 2 * kCanary + 64, std::byte{0xA5});
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  std::byte* out = memory.data() + kCanary + (64 - address % 64) % 64 + misalignment;
  out -= out + bytes + kCanary > memory.data() + memory.size() ? 64 : 0;
  const auto rows = source.rows(count, row_bytes);
  kernel.copy_rows(out, rows.data(), count, row_bytes);
  const std::string what = std::string(kernel.name) + ", rows of " + std::to_string(row_bytes) +
                           ", " + std::to_string(count) + ", at " + std::to_string(misalignment);
  for (std::size_t i = 0; i < count; ++i) {
    if (!std::equal(rows[i], rows[i] + row_bytes, out + i * row_bytes)) {
      check::fail(__FILE__, __LINE__, what + ": row " + std::to_string(i));
    }
  }
  const auto untouched = [](std::byte byte) { return byte == std::byte{0xA5}; };
  if (!std::all_of(memory.data(), out, untouched) ||
      !std::all_of(out + bytes, memory.data() + memory.size(), untouched)) {
    check::fail(__FILE__, __LINE__, what + ": wrote outside");
  }
}

// Runs of the given lengths, side by side from a misaligned place on.
void check_runs(const CopyKernel& kernel, Source& source, const std::vector<std::size_t>& lengths,
                std::size_t misalignment) {
  const std::size_t bytes = std::accumulate(lengths.begin(), lengths.end(), std::size_t{0});
  std::vector<std::byte> memory(bytes + 2 * kCanary, std::byte{0xA5});
  std::byte* const out = memory.data() + kCanary / 2 + misalignment;
  std::vector<Run> runs;
  std::byte* at = out;
  for (std::size_t length : lengths) {
    runs.push_back({source.rows(1, length)[0], at, length});
    at += length;
  }
  kernel.copy_runs(runs);
  for (const Run& run : runs) CHECK(std::equal(run.from, run.from + run.bytes, run.out));
  const auto untouched = [](std::byte byte) { return byte == std::byte{0xA5}; };
  CHECK(std::all_of(memory.data(), out, untouched));
  CHECK(std::all_of(at, memory.data() + memory.size(), untouched));
}

}  // namespace

int main() {
  Source source;
  for (const CopyKernel& kernel : copy_kernels()) {
    const auto promise = [&](const std::string& text, auto body) {
      check::promise((std::string(kernel.name) + ": " + text).c_str(), body);
    };
    promise("rows of 0 to 600 bytes equal memcpy and nothing else is written", [&] {
      for (std::size_t row_bytes = 0; row_bytes <= 600; ++row_bytes) {
        for (std::size_t count : {0, 1, 2, 8, 9, 23})
          check_copy(kernel, source, row_bytes, count, 0);
        check_copy(kernel, source, row_bytes, 10, 1 + row_bytes % 63);
      }
    });
    promise("0 to 70 rows", [&] {
      for (std::size_t row_bytes : {1, 2, 3, 4, 8, 16, 32, 48, 64, 100, 1024, 3072}) {
        for (std::size_t count = 0; count <= 70; ++count) {
          check_copy(kernel, source, row_bytes, count, count % 64);
          check_copy(kernel, source, row_bytes, count, 0);
        }
      }
    });
    promise("runs of any lengths, many and none, at every alignment", [&] {
      std::mt19937_64 random(3);
      for (std::size_t at = 0; at < 64; ++at) {
        std::vector<std::size_t> lengths;
        check_runs(kernel, source, lengths, at);
        for (std::size_t i = 0; i < 60; ++i) {
          lengths.push_back(random() % (i % 9 == 0 ? 70'000 : i % 4 == 0 ? 2000 : 70));
        }
        check_runs(kernel, source, lengths, at);
        check_runs(kernel, source, std::vector<std::size_t>(20, 1024 + 64 * (at % 3)), at);
      }
    });
    promise("long rows around every threshold, at every alignment", [&] {
      for (std::size_t size : {1024, 2048, 4096, 16384, 65536, 150528}) {
        for (std::size_t row_bytes :
             {size - 64, size - 63, size - 1, size, size + 1, size + 63, size + 64, size + 256}) {
          const std::size_t step = size > 16384 || check::kSanitized ? 21 : 1;
          for (std::size_t at = 0; at < 64; at += step)
            check_copy(kernel, source, row_bytes, 3, at);
          check_copy(kernel, source, row_bytes, 11, 0);
        }
      }
    });
  }

  check::promise("a kernel can be forced by name; \"auto\" is the fastest, others are refused", [] {
    CHECK(std::string(copy_kernels().back().name) == "portable");
    for (const CopyKernel& kernel : copy_kernels()) {
      set_copy_kernel(kernel.name);
      CHECK(&copy_kernel() == &kernel);
    }
    CHECK_THROWS(std::invalid_argument, set_copy_kernel("mmx"));
    set_copy_kernel("auto");
    CHECK(&copy_kernel() == &copy_kernels().front());
  });

  check::promise("what one thread copies another sees after a join", [&] {
    for (const CopyKernel& kernel : copy_kernels()) {
      const auto rows = source.rows(40, 16384);
      std::vector<std::byte> out(40 * 16384);
      std::vector<std::thread> team;
      for (std::size_t t = 0; t < 4; ++t) {
        team.emplace_back(
            [&, t] { kernel.copy_rows(out.data() + t * 163840, rows.data() + t * 10, 10, 16384); });
      }
      for (std::thread& thread : team) thread.join();
      for (std::size_t i = 0; i < 40; ++i) {
        CHECK(std::equal(rows[i], rows[i] + 16384, out.data() + i * 16384));
      }
    }
  });
}
