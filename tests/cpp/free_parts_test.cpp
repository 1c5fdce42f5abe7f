#include "device/free_parts.h"

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "base/bytes.h"
#include "check.h"

using namespace fastload;

namespace {

constexpr std::size_t kUnit = kFieldAlignment;

struct alignas(kUnit) Unit {
  std::byte bytes[kUnit];
};

// Memory for slabs, given back unpoisoned.
class Units {
 public:
  explicit Units(std::size_t count) : units_(count) {}
  ~Units() { unpoison(units_.data(), units_.size() * kUnit); }
  std::byte* at(std::size_t unit) { return units_[unit].bytes; }

 private:
  std::vector<Unit> units_;
};

// The same book, kept unit by unit: the tightest run of free units, the first in memory of those
// that are equal.
class Oracle {
 public:
  explicit Oracle(std::vector<std::size_t> slabs) : slabs_(std::move(slabs)) {
    for (std::size_t slab : slabs_) free_.insert(free_.end(), slab, true);
  }

  std::map<std::size_t, std::size_t> runs() const {
    std::map<std::size_t, std::size_t> runs;
    std::size_t start = 0;
    for (std::size_t slab : slabs_) {
      std::size_t length = 0;
      for (std::size_t i = start; i <= start + slab; ++i) {
        if (i < start + slab && free_[i]) {
          ++length;
        } else if (length > 0) {
          runs[i - length] = length;
          length = 0;
        }
      }
      start += slab;
    }
    return runs;
  }

  // The units' number if none is large enough.
  std::size_t take(std::size_t count) {
    std::size_t found = free_.size();
    std::size_t length = SIZE_MAX;
    for (const auto& [at, size] : runs()) {
      if (size >= count && size < length) {
        found = at;
        length = size;
      }
    }
    if (found < free_.size()) mark(found, count, false);
    return found;
  }

  void mark(std::size_t at, std::size_t count, bool free) {
    for (std::size_t i = at; i < at + count; ++i) free_[i] = free;
  }

 private:
  std::vector<std::size_t> slabs_;
  std::vector<bool> free_;
};

}  // namespace

int main() {
  check::promise("the tightest part is taken, neighbours in a slab become one, as in the slow book",
                 [] {
                   for (unsigned seed = 0; seed < 30; ++seed) {
                     std::mt19937 random(seed);
                     // Slabs side by side, as mmap gives them.
                     std::vector<std::size_t> slabs;
                     std::size_t total = 0;
                     for (std::size_t i = 0; i <= seed % 3; ++i) {
                       slabs.push_back(1 + random() % 40);
                       total += slabs.back();
                     }
                     Units units(total);
                     FreeParts parts;
                     std::size_t start = 0;
                     for (std::size_t slab : slabs) {
                       parts.add_slab(units.at(start), slab * kUnit);
                       start += slab;
                     }
                     Oracle oracle(slabs);
                     std::map<std::size_t, std::size_t> held;
                     for (int step = 0; step < 500; ++step) {
                       if (random() % 2 == 0) {
                         const std::size_t count = 1 + random() % 12;
                         const std::size_t at = oracle.take(count);
                         std::byte* data = parts.take(count * kUnit);
                         CHECK(data == (at == total ? nullptr : units.at(at)));
                         if (data == nullptr) continue;
                         std::fill(data, data + count * kUnit, std::byte{1});  // not poisoned
                         held[at] = count;
                       } else if (!held.empty()) {
                         const auto one = std::next(held.begin(), random() % held.size());
                         oracle.mark(one->first, one->second, true);
                         parts.give(units.at(one->first), one->second * kUnit);
                         held.erase(one);
                       }
                       const auto runs = oracle.runs();
                       CHECK_EQUAL(parts.count(), runs.size());
                       std::size_t free = 0;
                       for (const auto& [at, count] : runs) free += count;
                       CHECK_EQUAL(parts.bytes(), free * kUnit);
                     }
                     for (const auto& [at, count] : held) parts.give(units.at(at), count * kUnit);
                     CHECK_EQUAL(parts.count(), slabs.size());  // each is whole again
                     CHECK_EQUAL(parts.bytes(), total * kUnit);
                   }
                 });

  check::promise("what lies in a slab is known, whoever holds it", [] {
    Units units(10);
    FreeParts parts;
    CHECK(!parts.contains(units.at(3)));
    CHECK(parts.take(kUnit) == nullptr);
    parts.add_slab(units.at(2), 3 * kUnit);
    parts.add_slab(units.at(7), kUnit);
    CHECK(parts.take(3 * kUnit) == units.at(2));
    for (std::size_t i = 0; i < 10; ++i) {
      CHECK(parts.contains(units.at(i)) == ((i >= 2 && i < 5) || i == 7));
    }
    CHECK(!parts.contains(units.at(2) - 1) && parts.contains(units.at(4) + kUnit - 1));
  });

#if defined(__SANITIZE_ADDRESS__)
  check::promise("free parts cannot be touched under AddressSanitizer", [] {
    Units units(4);
    FreeParts parts;
    parts.add_slab(units.at(0), 4 * kUnit);
    CHECK(__asan_address_is_poisoned(units.at(3)));
    std::byte* data = parts.take(2 * kUnit);
    CHECK(!__asan_address_is_poisoned(data + 2 * kUnit - 1));
    CHECK(__asan_address_is_poisoned(data + 2 * kUnit));
    parts.give(data, 2 * kUnit);
    CHECK(__asan_address_is_poisoned(data));
  });
#endif
}
