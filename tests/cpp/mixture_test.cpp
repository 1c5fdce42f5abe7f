// An interleaving is what counting gives, and its inverse; a mixture gives each sample its turn.
#include "order/mixture.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"

using namespace fastload;

namespace {

using Numbers = std::vector<std::int64_t>;

// Goes down the tree with counters instead of shares of the position.
class Counting {
 public:
  explicit Counting(const Numbers& weights) : weights_(weights), visits_(4 * weights.size()) {}

  std::size_t next() { return next(0, 0, weights_.size()); }

 private:
  std::size_t next(std::size_t node, std::size_t first, std::size_t end) {
    const std::int64_t n = visits_[node]++;
    if (end - first == 1) return first;
    const std::size_t middle = first + (end - first) / 2;
    const std::int64_t left = sum(first, middle);
    const std::int64_t whole = sum(first, end);
    if ((n + 1) * left / whole > n * left / whole) return next(2 * node + 1, first, middle);
    return next(2 * node + 2, middle, end);
  }
  std::int64_t sum(std::size_t first, std::size_t end) const {
    return std::accumulate(weights_.begin() + static_cast<std::ptrdiff_t>(first),
                           weights_.begin() + static_cast<std::ptrdiff_t>(end), std::int64_t{0});
  }

  Numbers weights_;
  Numbers visits_;
};

void check_interleave(const Numbers& weights, std::int64_t positions) {
  const Interleave order(weights);
  Counting counting(weights);
  Numbers visits(weights.size(), 0);
  Numbers before(weights.size());
  for (std::int64_t p = 0; p < positions; ++p) {
    order.visits_before(p, before);
    CHECK(before == visits);
    const auto [source, visit] = order.at(p);
    CHECK_EQUAL(source, counting.next());
    CHECK_EQUAL(visit, visits[source]);
    CHECK_EQUAL(order.position_of(source, visit), p);
    ++visits[source];
  }
}

Mixture make(const Numbers& sizes, const Numbers& weights, Exhausted exhausted) {
  return Mixture({sizes, weights, exhausted, std::nullopt, 7});
}

}  // namespace

int main() {
  check::promise("positions are those that counting gives, and are found again", [] {
    check_interleave({5}, 50);
    check_interleave({1, 1}, 50);
    check_interleave({0, 3, 0, 0, 2, 1, 0}, 200);
    std::mt19937 random(0);
    for (int i = 0; i < 200; ++i) {
      Numbers weights(1 + random() % 9);
      for (std::int64_t& weight : weights) weight = static_cast<std::int64_t>(random() % 20);
      weights[random() % weights.size()] += 1;
      check_interleave(weights, 150);
    }
  });

  check::promise("nothing overflows with the largest weights and positions", [] {
    constexpr std::int64_t kEnd = Interleave::kEnd;
    for (const Numbers& weights :
         {Numbers{kEnd / 2, kEnd / 2}, Numbers{kEnd - 3, 1, 2}, Numbers{1, kEnd / 3, kEnd / 5, 1},
          Numbers{kEnd}, Numbers{1, 1, 1}}) {
      const Interleave order(weights);
      Numbers before(weights.size());
      Numbers after(weights.size());
      for (std::int64_t p : {std::int64_t{0}, std::int64_t{1}, kEnd / 7, kEnd - 2, kEnd - 1}) {
        const auto [source, visit] = order.at(p);
        CHECK_EQUAL(order.position_of(source, visit), p);
        order.visits_before(p, before);
        order.visits_before(p + 1, after);
        CHECK_EQUAL(before[source], visit);
        ++before[source];
        CHECK(before == after);
        CHECK_EQUAL(std::accumulate(after.begin(), after.end(), std::int64_t{0}), p + 1);
      }
    }
    const Interleave rare(Numbers{1, kEnd - 1});
    CHECK_EQUAL(rare.position_of(0, 0), kEnd - 1);
    CHECK_EQUAL(rare.position_of(0, 1), kEnd);
  });

  check::promise("each pass over a source has every sample once", [] {
    const Numbers sizes{5, 1, 12, 300};
    for (Exhausted exhausted : {Exhausted::kStop, Exhausted::kRepeat, Exhausted::kDrop}) {
      const Mixture mixture = make(sizes, {3, 1, 2, 4}, exhausted);
      Numbers indices(static_cast<std::size_t>(4 * mixture.size()));
      std::iota(indices.begin(), indices.end(), 0);
      Numbers sources(indices.size());
      Numbers samples(indices.size());
      mixture.locate(indices, sources, samples);
      Numbers rows(indices.size());
      mixture.rows(indices, rows);
      const Numbers starts{0, 5, 6, 18};
      std::vector<Numbers> seen(4);
      for (std::size_t i = 0; i < indices.size(); ++i) {
        const auto source = static_cast<std::size_t>(sources[i]);
        CHECK_EQUAL(rows[i], starts[source] + samples[i]);
        seen[source].push_back(samples[i]);
      }
      for (std::size_t d = 0; d < 4; ++d) {
        const std::int64_t n = sizes[d];
        for (std::size_t at = 0; at + static_cast<std::size_t>(n) <= seen[d].size();) {
          Numbers pass(seen[d].begin() + static_cast<std::ptrdiff_t>(at),
                       seen[d].begin() + static_cast<std::ptrdiff_t>(at) + n);
          std::sort(pass.begin(), pass.end());
          for (std::int64_t i = 0; i < n; ++i) CHECK_EQUAL(pass[static_cast<std::size_t>(i)], i);
          at += static_cast<std::size_t>(n);
        }
      }
      mixture.rows(indices, indices);  // in place
      CHECK(indices == rows);
    }
  });

  check::promise("an epoch of kDrop has each sample once, whatever the proportions", [] {
    std::mt19937 random(1);
    for (int i = 0; i < 100; ++i) {
      Numbers sizes(1 + random() % 12);
      Numbers weights(sizes.size());
      for (std::size_t d = 0; d < sizes.size(); ++d) {
        sizes[d] = 1 + static_cast<std::int64_t>(random() % 20);
        weights[d] = 1 + static_cast<std::int64_t>(random() % 9);
      }
      const Mixture mixture = make(sizes, weights, Exhausted::kDrop);
      const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
      CHECK_EQUAL(mixture.size(), total);
      CHECK(mixture.counts(3) == sizes);
      for (std::int64_t epoch : {std::int64_t{0}, std::int64_t{5}}) {
        Numbers rows(static_cast<std::size_t>(total));
        std::iota(rows.begin(), rows.end(), epoch * total);
        mixture.rows(rows, rows);
        std::sort(rows.begin(), rows.end());
        for (std::int64_t r = 0; r < total; ++r) CHECK_EQUAL(rows[static_cast<std::size_t>(r)], r);
      }
    }
  });

  check::promise("a wrong spec is refused", [] {
    const auto refuses = [](const char* word, MixtureSpec spec) {
      const std::string message = CHECK_THROWS(std::invalid_argument, Mixture{std::move(spec)});
      CHECK(message.find(word) != std::string::npos);
    };
    constexpr std::int64_t kEnd = Interleave::kEnd;
    const auto stop = Exhausted::kStop;
    refuses("one weight", {{1, 2}, {1}, stop, {}, {}});
    refuses("sizes", {{}, {}, stop, {}, {}});
    refuses("sizes", {{1, 0}, {1, 1}, stop, {}, {}});
    refuses("sizes", {{kEnd, 1}, {1, 1}, stop, {}, {}});
    refuses("weights", {{1, 1}, {1, -1}, stop, {}, {}});
    refuses("weights", {{1, 1}, {0, 0}, stop, {}, {}});
    refuses("weights", {{1, 1}, {kEnd, 1}, stop, {}, {}});
    refuses("epoch", {{1}, {1}, stop, 0, {}});
    refuses("epoch", {{kEnd / 2, 9}, {1, kEnd / 2}, Exhausted::kRepeat, {}, {}});
    refuses("exhausted=drop", {{1}, {1}, Exhausted::kDrop, 5, {}});
  });
}
