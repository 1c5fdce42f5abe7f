#include "order/permutation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "base/hash.h"
#include "check.h"

using fastload::hash_key;
using fastload::Permutation;

namespace {

std::vector<std::int64_t> order_of(const Permutation& permutation) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(permutation.size()));
  permutation.indices_from(0, order);
  return order;
}

void check_bijection(std::int64_t n, std::uint64_t key) {
  const Permutation permutation(n, key);
  std::vector<bool> seen(static_cast<std::size_t>(n));
  std::int64_t position = 0;
  for (std::int64_t index : order_of(permutation)) {
    CHECK(index >= 0 && index < n);
    CHECK(!seen[static_cast<std::size_t>(index)]);
    seen[static_cast<std::size_t>(index)] = true;
    CHECK_EQUAL(permutation.position_of(index), position);
    ++position;
  }
}

// How many standard deviations the chi-square of equally likely `counts` lies above its mean.
double excess(const std::vector<double>& counts) {
  double total = 0;
  for (double count : counts) total += count;
  const double expected = total / static_cast<double>(counts.size());
  double chi_square = 0;
  for (double count : counts) chi_square += (count - expected) * (count - expected) / expected;
  const auto freedom = static_cast<double>(counts.size() - 1);
  return (chi_square - freedom) / std::sqrt(2 * freedom);
}

// Over many keys: where each index lands, and which two indices are drawn one after the other.
void check_uniform(std::size_t n, int keys, std::uint64_t seed_step, std::uint64_t epoch_step) {
  std::vector<std::vector<double>> landed(n, std::vector<double>(n));
  std::vector<double> neighbours(n - 1), halves(n - 1);
  std::vector<double> pairs(n * (n - 1));
  for (int k = 0; k < keys; ++k) {
    const auto step = static_cast<std::uint64_t>(k);
    const auto key = hash_key(7 + step * seed_step, 3 + step * epoch_step, 0);
    const auto order = order_of(Permutation(static_cast<std::int64_t>(n), key));
    const auto at = [&](std::size_t i) { return static_cast<std::size_t>(order[i]); };
    for (std::size_t i = 0; i < n; ++i) ++landed[i][at(i)];
    for (std::size_t i = 0; i + 1 < n; ++i) ++neighbours[(at(i + 1) + n - at(i)) % n - 1];
    for (std::size_t i = 0; i < n / 2; ++i) ++halves[(at(i + n / 2) + n - at(i)) % n - 1];
    ++pairs[at(0) * (n - 1) + at(1) - (at(1) > at(0) ? 1 : 0)];
  }
  for (const auto& counts : landed) CHECK(excess(counts) < 6);
  CHECK(excess(pairs) < 6);
  if (n < 3) return;
  CHECK(excess(neighbours) < 6);
  CHECK(excess(halves) < 6);
}

}  // namespace

int main() {
  check::promise("every n up to 4096 is a bijection whose inverse is exact", [] {
    const std::int64_t step = check::kSanitized ? 7 : 1;
    for (std::int64_t n = 1; n <= 4096; n += step) {
      check_bijection(n, hash_key(0, static_cast<std::uint64_t>(n), 0));
    }
    for (std::int64_t n = 1; n <= 300; ++n) {
      for (std::uint64_t seed = 0; seed < 5; ++seed) check_bijection(n, hash_key(seed, 1, 2));
    }
  });

  check::promise("2^k - 1, 2^k and 2^k + 1 are bijections, 65537 and 1048577 among them", [] {
    for (int k = 1; k <= 20; ++k) {
      for (std::int64_t n : {-1, 0, 1}) {
        const std::int64_t size = (std::int64_t{1} << k) + n;
        for (std::uint64_t key : {std::uint64_t{0}, hash_key(1, 0, 0), ~std::uint64_t{0}}) {
          if (check::kSanitized && k > 16 && key != 0) continue;
          check_bijection(size, key);
        }
      }
    }
  });

  check::promise("sizes up to 2^62 stay in range and invert", [] {
    for (int bits = 21; bits <= 62; ++bits) {
      for (std::int64_t delta : {-1, 0, 1}) {
        const std::int64_t n = (std::int64_t{1} << bits) + delta;
        if (n > Permutation::kMaxSize) continue;
        const Permutation permutation(n, hash_key(9, 9, 9));
        for (std::int64_t i = 0; i < 200; ++i) {
          for (std::int64_t position : {i, n - 1 - i, n / 200 * i}) {
            const std::int64_t index = permutation.index_at(position);
            CHECK(index >= 0 && index < n);
            CHECK_EQUAL(permutation.position_of(index), position);
          }
        }
      }
    }
  });

  check::promise("a run equals its single positions, wherever it starts", [] {
    for (std::int64_t n : {1, 2, 5, 4096, 4097, 100000}) {
      const Permutation permutation(n, 11);
      for (std::int64_t first = 0; first < n; first += std::max<std::int64_t>(1, n / 13)) {
        std::vector<std::int64_t> run(
            static_cast<std::size_t>(std::min<std::int64_t>(50, n - first)));
        permutation.indices_from(first, run);
        for (std::int64_t& index : run) {
          CHECK_EQUAL(index, permutation.index_at(first + (&index - run.data())));
        }
      }
    }
  });

  check::promise("sizes outside [1, 2^62] are refused", [] {
    for (std::int64_t n : {std::int64_t{0}, std::int64_t{-1}, Permutation::kMaxSize + 1}) {
      CHECK_THROWS(std::invalid_argument, Permutation(n, 0));
    }
  });

  check::promise("orders never change: golden values", [] {
    CHECK(hash_key(0, 0, 0) == 0x7FD1E9BF2553AF67);
    CHECK(hash_key(1, 2, 3) == 0xB33E7AD2CC083D6F);
    CHECK(order_of(Permutation(10, hash_key(0, 0, 0))) ==
          (std::vector<std::int64_t>{6, 9, 3, 7, 5, 2, 1, 4, 0, 8}));
    CHECK(order_of(Permutation(17, hash_key(42, 3, 0))) ==
          (std::vector<std::int64_t>{15, 4, 3, 13, 2, 10, 1, 12, 11, 9, 8, 6, 14, 7, 16, 0, 5}));
    std::vector<std::int64_t> run(8);
    Permutation(1281167, hash_key(1, 0, 0)).indices_from(0, run);
    CHECK(run == (std::vector<std::int64_t>{283929, 106414, 387459, 247998, 1250437, 453829, 951062,
                                            64633}));
    Permutation(Permutation::kMaxSize, hash_key(1, 1, 0)).indices_from(5, run);
    CHECK(run ==
          (std::vector<std::int64_t>{979241502779102451, 788437391037191848, 976756865716570997,
                                     109315576190628904, 293841515440034069, 2272105521224633061,
                                     4469791485744756574, 4610223742920044362}));
  });

  check::promise("seed and epoch do not add up: (s, e + 1) and (s + 1, e) have nothing in common",
                 [] {
                   for (std::uint64_t s = 0; s < 20; ++s) {
                     for (std::uint64_t e = 0; e < 20; ++e) {
                       CHECK(hash_key(s, e + 1, 0) != hash_key(s + 1, e, 0));
                       CHECK(hash_key(s, e, 1) != hash_key(s, e + 1, 0));
                       CHECK(s == e || hash_key(s, e, 0) != hash_key(e, s, 0));
                       const auto a = order_of(Permutation(1000, hash_key(s, e + 1, 0)));
                       const auto b = order_of(Permutation(1000, hash_key(s + 1, e, 0)));
                       int equal = 0;
                       for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i];
                       CHECK(equal < 12);  // one is expected
                     }
                   }
                 });

  check::promise("over many seeds or epochs every order of few samples is equally likely", [] {
    const int keys = check::kSanitized ? 4000 : 60000;
    for (std::size_t n : {2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 32, 33, 64}) {
      check_uniform(n, keys, 1, 0);
      check_uniform(n, keys, 0, 1);
    }
    const int fewer = keys / 30;
    for (std::size_t n : {128, 256, 512, 1000, 1024}) check_uniform(n, fewer, 1, 0);
    if (!check::kSanitized) check_uniform(4097, 200, 1, 0);
  });
}
