// A table whose indices are computed: engines deliver what the map says, under the index's own
// name.
#include "base/index_map.h"

#include <memory>
#include <stdexcept>
#include <string>

#include "check.h"
#include "engine_fixtures.h"
#include "order/mixture.h"

using namespace fastload;
using namespace fixtures;

namespace {

constexpr std::int64_t kRows = 300;

// Of three sources that lie one after the other.
std::shared_ptr<const Mixture> mixture() {
  return std::make_shared<const Mixture>(
      MixtureSpec{{100, 30, 170}, {5, 2, 1}, Exhausted::kRepeat, std::nullopt, 3});
}

TestTable table_over(const Folder& folder, Io io, const Indices* map = nullptr) {
  return TestTable(folder, {120, 120, 60}, {{1000}, {8, 0, 16}, {40000, 0, 0, true}}, io, map,
                   OpenFileLimits::of_this_process(), mixture());
}

}  // namespace

int main() {
  check::promise("any number of workers, any way of reading: the rows that the map names", [] {
    const Folder folder;
    Indices map(kRows);
    for (std::int64_t i = 0; i < kRows; ++i) map[static_cast<std::size_t>(i)] = kRows - 1 - i;
    for (const Indices* inner : {static_cast<const Indices*>(nullptr), &std::as_const(map)}) {
      for (Io io : {Io::kMmap, Io::kPread}) {
        const TestTable data = table_over(folder, io, inner);
        EpochSpec spec = shuffled(mixture()->size(), 150);  // of several pieces
        for (int workers : {0, 1, 3}) {
          Engine engine(data.table, new_pool(), plan_order(spec), {workers, 3});
          check_epoch(engine, data, spec);
          spec.index_offset += spec.rows;  // the epoch after it
        }
      }
    }
  });

  check::promise("the indices of a table reach as far as its map", [] {
    const Folder folder;
    const TestTable data = table_over(folder, Io::kAuto);
    CHECK_EQUAL(data.table->rows(), Interleave::kEnd);
    data.table->check_indices(Indices{0, Interleave::kEnd - 1});
    const std::string message =
        CHECK_THROWS(std::out_of_range, data.table->check_indices(Indices{Interleave::kEnd}));
    CHECK(message.find(std::to_string(Interleave::kEnd)) != std::string::npos);
    EpochSpec spec = shuffled(mixture()->size(), 40);
    spec.index_offset = Interleave::kEnd - spec.rows;
    Engine engine(data.table, new_pool(), plan_order(spec), {2, 3});
    check_epoch(engine, data, spec);
  });

  check::promise("a map for another number of samples is refused", [] {
    const Folder folder;
    const Indices few{1, 2, 3};
    CHECK_THROWS(std::invalid_argument, table_over(folder, Io::kAuto, &few));
  });
}
