#include "order/weighted.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "base/hash.h"
#include "check.h"
#include "order/epoch_plan.h"

using namespace fastload;

namespace {

using Weights = std::vector<double>;

WeightTable table_of(const Weights& weights) {
  return WeightTable(std::span<const double>(weights));
}

// How often each index comes, of evenly spread numbers.
std::vector<int> counts_of(const WeightTable& table, int draws) {
  std::vector<int> counts(static_cast<std::size_t>(table.size()));
  const std::uint64_t step =
      std::numeric_limits<std::uint64_t>::max() / static_cast<unsigned>(draws);
  for (int i = 0; i < draws; ++i) {
    const auto at = static_cast<std::uint64_t>(i) * step + step / 2;
    ++counts[static_cast<std::size_t>(table.index_at(at))];
  }
  return counts;
}

}  // namespace

int main() {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

  check::promise("an index has its share of all numbers, and weight 0 has none", [] {
    const auto counts = counts_of(table_of({0, 1, 0, 2, 5, 0}), 8000);
    CHECK(counts == (std::vector<int>{0, 1000, 0, 2000, 5000, 0}));
    CHECK_EQUAL(table_of({0, 0, 3}).index_at(0), 2);
    CHECK_EQUAL(table_of({3, 0, 0}).index_at(kMost), 0);
    CHECK_EQUAL(table_of({7}).index_at(kMost / 2), 0);
  });

  check::promise("sums are exact: within one unit of 2^-61 for each weight", [] {
    Weights weights;
    for (int i = 0; i < 5000; ++i) {
      weights.push_back(static_cast<double>(mix(static_cast<std::uint64_t>(i)) % 1000) / 7);
    }
    const WeightTable table = table_of(weights);
    long double whole = 0, sum = 0;
    for (double weight : weights) whole += static_cast<long double>(weight);
    const auto total = static_cast<long double>(table.sums().back());
    CHECK(total >= 0x1p61L && total <= 0x1p62L + 5000);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      sum += static_cast<long double>(weights[i]);
      const long double error = static_cast<long double>(table.sums()[i]) - sum / whole * total;
      CHECK(std::fabs(error) <= static_cast<long double>(i) + 5);
    }
  });

  check::promise("weights of any size, alone and beside others", [] {
    const double tiny = std::numeric_limits<double>::denorm_min();
    const double huge = std::numeric_limits<double>::max();
    for (double unit : {tiny, 1e-300, 1e-30, 1.0, 1e300, huge / 8}) {
      const auto counts = counts_of(table_of({unit, unit * 3, 0, unit * 4}), 8000);
      CHECK(counts == (std::vector<int>{1000, 3000, 0, 4000}));
    }
    for (std::size_t count : {1U, 2U, 1000U}) {  // whose sum is no number
      const auto counts = counts_of(table_of(Weights(count, huge)), 8000);
      for (int found : counts) CHECK_EQUAL(found, 8000 / static_cast<int>(count));
    }
    const auto counts = counts_of(table_of({1e-300, 1e300, tiny}), 1000);
    CHECK(counts == (std::vector<int>{0, 1000, 0}));
  });

  check::promise("a number is looked for in the sums, alone or with others", [] {
    for (std::size_t count = 1; count <= 70; ++count) {
      Weights weights(count);
      for (std::size_t i = 0; i < count; ++i) weights[i] = static_cast<double>(mix(i * count) % 4);
      weights[count / 2] = 1;
      const WeightTable table = table_of(weights);
      const auto sums = table.sums();
      for (std::size_t size : {0U, 1U, 15U, 16U, 17U, 50U}) {
        std::vector<std::int64_t> out(size);
        table.indices_from(count, 7, out);
        for (std::size_t i = 0; i < size; ++i) {
          const std::uint64_t bits = mix(count + kGolden * (7 + i + 1));
          CHECK_EQUAL(out[i], table.index_at(bits));
          const auto number = static_cast<std::uint64_t>(
              (static_cast<unsigned __int128>(bits) * sums.back()) >> 64);
          std::int64_t slow = 0;
          while (sums[static_cast<std::size_t>(slow)] <= number) ++slow;
          CHECK_EQUAL(out[i], slow);
        }
      }
      CHECK(weights[static_cast<std::size_t>(table.index_at(kMost))] > 0);
      CHECK(weights[static_cast<std::size_t>(table.index_at(0))] > 0);
    }
  });

  check::promise("float and double weights give the same, and so do weights times 2^k", [] {
    const std::vector<float> floats{0.1F, 0.0F, 3.0F, 1e-30F};
    const WeightTable table{std::span<const float>(floats)};
    const Weights doubles(floats.begin(), floats.end());
    CHECK_EQUAL(table.fingerprint(), table_of(doubles).fingerprint());
    Weights scaled = doubles;
    for (double& weight : scaled) weight *= 1024;
    CHECK_EQUAL(table.fingerprint(), table_of(scaled).fingerprint());
    scaled[0] *= 1.0000001;
    CHECK(table.fingerprint() != table_of(scaled).fingerprint());
    CHECK(table_of({1, 0}).fingerprint() != table_of({1}).fingerprint());
  });

  check::promise("what is no weight is refused by its place", [] {
    const auto refused = [](const Weights& weights, const char* words) {
      const std::string message = CHECK_THROWS(std::invalid_argument, table_of(weights));
      CHECK(message.find(words) != std::string::npos);
    };
    refused({}, "at least one weight must be above 0");
    refused({0, 0}, "at least one weight must be above 0");
    refused({1, -1, NAN}, "weights[1]");
    refused({1, 2, NAN}, "weights[2]");
    refused({INFINITY}, "weights[0]");
    for (const std::vector<std::uint64_t>& sums :
         std::vector<std::vector<std::uint64_t>>{{}, {0}, {3, 2}}) {
      CHECK_THROWS(std::invalid_argument, WeightTable::of_sums(sums));
    }
  });

  check::promise("a plan draws each position for itself, whatever was drawn before", [] {
    EpochSpec spec;
    spec.order = OrderKind::kWeighted;
    CHECK_THROWS(std::invalid_argument, EpochPlan{spec});
    const Weights weights{1, 2, 3, 4};
    spec.weights = std::make_shared<const WeightTable>(std::span<const double>(weights));
    spec.rows = 100;  // more than there are weights
    spec.seed = 3;
    spec.batch = 100;
    std::vector<std::int64_t> whole, part;
    EpochPlan(spec).indices(0, whole);
    spec.batch = 7;
    for (spec.world = 1; spec.world <= 3; ++spec.world) {
      for (spec.first_position = 0; spec.first_position <= 100; ++spec.first_position) {
        std::vector<std::int64_t> all;
        const std::int64_t steps = (100 - spec.first_position) / (7 * spec.world) + 1;
        for (std::int64_t k = 0; k < steps; ++k) {
          for (spec.rank = 0; spec.rank < spec.world; ++spec.rank) {
            const EpochPlan plan(spec);
            if (k >= plan.batch_count()) continue;
            plan.indices(k, part);
            all.insert(all.end(), part.begin(), part.end());
          }
          spec.rank = 0;
        }
        CHECK(all == std::vector<std::int64_t>(whole.begin() + spec.first_position, whole.end()));
      }
    }
    for (std::int64_t p = 0; p < 100; ++p) {
      const std::uint64_t bits =
          mix(hash_key(3, 0, 0) + kGolden * (static_cast<std::uint64_t>(p) + 1));
      CHECK_EQUAL(whole[static_cast<std::size_t>(p)], spec.weights->index_at(bits));
    }
  });
}
