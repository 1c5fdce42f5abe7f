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

  check::promise("values and bounds of a ragged column lie inside their files", [] {
    const auto fits = [](std::int64_t rows, std::int64_t element, std::int64_t total,
                         std::int64_t values_at, std::int64_t bounds_at) {
      Bounds bounds{{"t", 16, 8, {0}, {bounds_at}, false, 0}, {total}};
      one_column({rows},
                 {"t",
                  element,
                  element,
                  {0},
                  {values_at},
                  false,
                  0,
                  std::make_shared<const Bounds>(std::move(bounds))},
                 100);
    };
    fits(3, 4, 10, 60, 68);
    fits(0, 4, 1000, 100, 100);  // nothing is read from a shard without rows
    fits(3, 0, INT64_MAX, 100, 0);
    CHECK_THROWS(FormatError, fits(3, 4, 10, 61, 68));
    CHECK_THROWS(FormatError, fits(3, 4, 10, 60, 69));
    CHECK_THROWS(FormatError, fits(3, 4, 10, -1, 68));
    CHECK_THROWS(FormatError, fits(3, 4, 10, 60, -1));
    CHECK_THROWS(std::invalid_argument, fits(3, 4, -1, 60, 68));
    CHECK_THROWS(std::overflow_error, fits(3, 4, INT64_MAX / 2, 60, 68));
    CHECK_THROWS(std::overflow_error, fits(INT64_MAX / 4, 4, 1, 60, 68));
  });

  check::promise("every item of a strided column lies inside its memory, to the byte", [] {
    std::vector<std::byte> memory(100);
    const auto fits = [&](std::int64_t rows, const Indices& strides, std::int64_t offset,
                          std::int64_t row_bytes = 12) {
      Column column{"x", row_bytes, 0, {0}, {offset}, false, 0};
      column.strides = {RowStrides::of(Indices{3}, strides, 4)};
      std::vector<ColumnGroup> groups;
      groups.emplace_back(std::vector<std::int64_t>{rows}, Indices(), false);
      const Table table(std::make_unique<FileCache>(Io::kAuto), {Source{-1, memory}},
                        std::move(groups), {column});
    };
    fits(5, {4, 40}, 0);  // the last item ends at 16 + 80 + 4
    fits(5, {-4, 40}, 16);
    fits(5, {-4, -40}, 96);
    fits(1'000'000, {0, 0}, 96);
    fits(0, {4, 1000}, 500);
    for (const std::int64_t offset : {-1, 1}) CHECK_THROWS(FormatError, fits(5, {4, 40}, offset));
    for (const std::int64_t offset : {95, 97}) {
      CHECK_THROWS(FormatError, fits(5, {-4, -40}, offset));
    }
    CHECK_THROWS(FormatError, fits(6, {4, 40}, 0));
    CHECK_THROWS(std::overflow_error, fits(3, {INT64_MAX / 2 + 1, 40}, 0));
    CHECK_THROWS(std::invalid_argument, fits(5, {4, 40}, 0, 16));
    Column in_file{"x", 12, 0, {0}, {0}, false, 0};
    in_file.strides = {RowStrides::of(Indices{3}, Indices{4, 8}, 4)};
    CHECK_THROWS(std::invalid_argument, one_column({2}, in_file, 100));
    in_file.strides.push_back(in_file.strides[0]);
    CHECK_THROWS(std::invalid_argument, one_column({2}, in_file, 100));
  });

  check::promise("only whole numbers are converted", [] {
    const auto build = [](std::int64_t row_bytes, Stored stored, bool boolean) {
      one_column({2}, {"x", row_bytes, row_bytes, {0}, {0}, boolean, 0, nullptr, stored}, 100);
    };
    build(6, Stored::kU16, false);
    CHECK_THROWS(std::invalid_argument, build(5, Stored::kU16, false));
    CHECK_THROWS(std::invalid_argument, build(6, Stored::kI32, false));
    CHECK_THROWS(std::invalid_argument, build(6, Stored::kU8, true));
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
