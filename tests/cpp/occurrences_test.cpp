#include "order/occurrences.h"

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/hash.h"
#include "check.h"

using namespace fastload;
using Indices = std::vector<std::int64_t>;

namespace {

// What must come for the indices of an epoch, and for those that are counted before.
Indices slow_draws(const Indices& before, const Indices& indices) {
  std::map<std::int64_t, std::uint64_t> counts;
  for (std::int64_t index : before) ++counts[index];
  Indices draws;
  for (std::int64_t index : indices) {
    const std::uint64_t count = counts[index]++;
    draws.push_back(count == 0 ? index : repeat_draw(index, count));
  }
  return draws;
}

Indices random_indices(std::size_t count, std::int64_t rows, std::uint64_t seed) {
  Indices indices;
  for (std::size_t i = 0; i < count; ++i) {
    indices.push_back(static_cast<std::int64_t>(mix(seed + i) % static_cast<std::uint64_t>(rows)));
  }
  return indices;
}

void check_draws(std::int64_t rows, const Indices& before, const Indices& indices) {
  const Indices wanted = slow_draws(before, indices);
  for (const std::size_t step : {std::size_t{1}, std::size_t{7}, indices.size() + 1}) {
    Occurrences repeats(rows);
    repeats.count(before);
    Indices all, draws{1, 2, 3};
    for (std::size_t at = 0; at < indices.size(); at += step) {
      const std::size_t end = std::min(indices.size(), at + step);
      repeats.count(std::span(indices).subspan(at, end - at), &draws);
      all.insert(all.end(), draws.begin(), draws.end());
    }
    CHECK(all == wanted);
  }
}

}  // namespace

int main() {
  check::promise(
      "each time that an index comes has its draw, for few and for many of the rows", [] {
        for (std::int64_t rows : {1, 2, 31, 32, 33, 1000}) {
          for (std::size_t count : {1, 3, 33, 40, 900}) {
            check_draws(rows, {}, random_indices(count, rows, count));
            check_draws(rows, random_indices(count, rows, 1), random_indices(100, rows, 2));
          }
        }
        check_draws(std::int64_t{1} << 62, {}, random_indices(900, 300, 5));
        check_draws(0, {}, random_indices(900, 300, 5));
      });

  check::promise("one that comes very often, before and after the rows have bytes", [] {
    const Indices often(600, 4);
    check_draws(100, {}, often);
    check_draws(100, {1, 2, 3, 5}, often);
    check_draws(100'000, often, often);
    Indices then = random_indices(5000, 100'000, 3);
    then.insert(then.end(), often.begin(), often.end());
    check_draws(100'000, often, then);
  });

  check::promise("indices that no row has are counted like others", [] {
    const Indices odd{-1, 5, INT64_MAX, -1, INT64_MIN, 5, INT64_MAX, 9, 10, 10, INT64_MIN};
    check_draws(10, {}, odd);
    check_draws(10, odd, odd);
    check_draws(1000, random_indices(900, 1000, 3), odd);
  });

  check::promise("a draw of a repeat is no index and nobody else's", [] {
    std::set<std::int64_t> seen;
    for (std::int64_t index = 0; index < 300; ++index) {
      for (std::uint64_t before = 1; before < 300; ++before) {
        const std::int64_t draw = repeat_draw(index, before);
        CHECK(draw < 0);
        CHECK(seen.insert(draw).second);
      }
    }
  });
}
