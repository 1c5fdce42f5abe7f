#include "storage/table.h"

#include <stdexcept>

#include "base/error.h"
#include "fixtures.h"

using namespace fastload;
using namespace fixtures;

namespace {

Table one_column(std::vector<std::int64_t> rows, const Column& column, std::int64_t file_bytes) {
  auto files = std::make_unique<FileCache>(Io::kAuto);
  files->add("/nowhere/data.bin", file_bytes);
  std::vector<ColumnGroup> groups;
  groups.emplace_back(rows, Indices(), false);
  return Table(std::move(files), {Source{0, {}}}, std::move(groups), {column});
}

}  // namespace

int main() {
  check::promise("every row lies inside its file, to the byte; files are opened lazily", [] {
    const auto fits = [](std::int64_t rows, std::int64_t row_bytes, std::int64_t stride,
                         std::int64_t offset, std::int64_t size) {
      one_column({rows}, {"x", row_bytes, stride, {0}, {offset}, false, 0}, size);
    };
    fits(10, 8, 8, 20, 100);
    fits(10, 8, 10, 2, 100);
    fits(0, 8, 8, 100, 100);
    fits(1'000'000, 8, 0, 92, 100);
    fits(INT64_MAX, 0, 0, 0, 0);
    const std::string message = CHECK_THROWS(FormatError, fits(10, 8, 8, 21, 100));
    CHECK(message.find("/nowhere/data.bin") != std::string::npos);
    CHECK(message.find("'x'") != std::string::npos && message.find("101") != std::string::npos);
    CHECK_THROWS(FormatError, fits(10, 8, 10, 3, 100));
    CHECK_THROWS(FormatError, fits(1, 8, 8, -1, 100));
    CHECK_THROWS(FormatError, fits(0, 8, 8, 101, 100));
    CHECK_THROWS(std::invalid_argument, fits(1, -1, 8, 0, 100));
    CHECK_THROWS(std::invalid_argument, fits(1, 8, -8, 0, 100));
    CHECK_THROWS(std::overflow_error,
                 fits(std::int64_t{1} << 40, 8, std::int64_t{1} << 40, 0, 100));
  });

  check::promise("groups must have equally many samples", [] {
    const std::vector<std::int64_t> ten{4, 6}, nine{9};
    const Indices map(10, 0);
    const auto build = [&](const std::vector<std::int64_t>& rows, const Indices* index_map) {
      std::vector<ColumnGroup> groups;
      groups.emplace_back(ten, Indices(), false);
      groups.emplace_back(rows, index_map != nullptr ? *index_map : Indices(),
                          index_map != nullptr);
      return Table(std::make_unique<FileCache>(Io::kAuto), {}, std::move(groups), {}).rows();
    };
    CHECK_EQUAL(build(ten, nullptr), 10);
    CHECK_EQUAL(build(nine, &map), 10);
    CHECK_THROWS(std::invalid_argument, build(nine, nullptr));
    CHECK_THROWS(std::invalid_argument, Table(std::make_unique<FileCache>(Io::kAuto), {}, {}, {}));
  });

  check::promise("shard lengths and index maps are checked", [] {
    const std::vector<std::int64_t> negative{3, -1}, overflowing{INT64_MAX, 1}, three{3};
    CHECK_THROWS(std::invalid_argument, ColumnGroup(negative, {}, false));
    CHECK_THROWS(std::overflow_error, ColumnGroup(overflowing, {}, false));
    for (std::int64_t wrong : {3, -1}) {
      const Indices map{0, wrong};
      CHECK_THROWS(std::invalid_argument, ColumnGroup(three, map, true));
    }
  });

  check::promise("rows are found in their shards, empty shards skipped", [] {
    const std::vector<std::vector<std::int64_t>> cases{
        {5}, {3, 3, 3}, {3, 3, 1}, {3, 3, 4}, {0, 3, 0, 2, 0}, {1, 0, 0, 7}, {2, 2, 0}, {0, 0, 4}};
    for (const auto& shard_rows : cases) {
      const ColumnGroup group(shard_rows, {}, false);
      Indices all;
      for (std::int64_t i = 0; i < group.rows(); ++i) all.push_back(i);
      std::vector<RowPlace> places(all.size());
      group.locate(all, places);
      std::size_t at = 0;
      for (std::size_t s = 0; s < shard_rows.size(); ++s) {
        for (std::int64_t row = 0; row < shard_rows[s]; ++row, ++at) {
          CHECK_EQUAL(places[at].shard, s);
          CHECK_EQUAL(places[at].row, row);
        }
      }
      CHECK_EQUAL(at, all.size());
    }
  });
}
