#include "batch/gather.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "batch/copy.h"
#include "fixtures.h"

using namespace fastload;
using namespace fixtures;

namespace {

void check_gather(Gatherer& gatherer, const TestTable& data, const Indices& indices,
                  Reading reading) {
  data.table->check_indices(indices);
  const auto columns = data.table->columns();
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::size_t bytes = indices.size() * static_cast<std::size_t>(columns[c].row_bytes);
    Bytes out(bytes + 64, std::byte{0x5A});
    gatherer.gather(columns[c], indices, out.data(), reading);
    data.check_samples(c, indices, out.data());
    for (std::size_t i = bytes; i < out.size(); ++i) CHECK(out[i] == std::byte{0x5A});
  }
}

Indices random_indices(std::int64_t rows, std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  Indices indices(count);
  for (std::int64_t& i : indices) {
    i = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows));
  }
  return indices;
}

void check_everything(const TestTable& data) {
  const std::int64_t rows = data.table->rows();
  Gatherer gatherer(*data.table);
  Indices all, backwards;
  for (std::int64_t i = 0; i < rows; ++i) all.push_back(i);
  backwards.assign(all.rbegin(), all.rend());
  for (Reading reading : {Reading::kMapped, Reading::kCold}) {
    check_gather(gatherer, data, {}, reading);
    check_gather(gatherer, data, all, reading);
    check_gather(gatherer, data, backwards, reading);
    check_gather(gatherer, data, random_indices(rows, 100, 3), reading);
    check_gather(gatherer, data, {rows - 1, rows - 1, 0, 0}, reading);
    for (std::int64_t first = 0; first + 7 <= rows; first += 5) {  // runs over shard borders
      check_gather(gatherer, data, {first, first + 1, first + 2, first + 3, first + 6}, reading);
    }
    for (const Column& column : data.table->columns()) {
      gatherer.resolver().will_need({column, all});
      gatherer.resolver().is_resident({column, all});
    }
  }
}

const std::vector<ColumnSpec> kColumns{
    {.row_bytes = 8},
    {.row_bytes = 1, .header = 128, .boolean = true},
    {.row_bytes = 3072, .header = 77},
    {.row_bytes = 100, .gap = 28},
    {.row_bytes = 16, .gap = -12},  // overlapping windows
    {.row_bytes = 0},
    {.row_bytes = 24, .in_memory = true},
    {.row_bytes = 17000},
};

template <class Error>
std::string gather_error(Gatherer& gatherer, const Column& column, const Indices& indices,
                         Reading reading = Reading::kMapped) {
  Bytes out(indices.size() * static_cast<std::size_t>(column.row_bytes));
  return CHECK_THROWS(Error, gatherer.gather(column, indices, out.data(), reading));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

int main() {
  check::promise("one shard, equal, unequal and empty shards; mapped and by pread", [] {
    const std::vector<std::vector<std::int64_t>> shards{
        {53}, {10, 10, 10, 4}, {7, 1, 20, 3}, {0, 9, 0, 0, 30, 0}, {1, 1, 1, 1, 1, 1, 1}};
    for (const auto& rows : shards) {
      for (Io io : {Io::kMmap, Io::kPread}) {
        const Folder folder;
        auto columns = kColumns;
        columns.erase(columns.begin() + 4);  // its rows would overwrite each other in a file
        check_everything(TestTable(folder, rows, columns, io));
      }
    }
  });

  check::promise("an index map chooses, repeats and reorders rows", [] {
    const Folder folder;
    const Indices map{5, 5, 0, 52, 17, 3, 2, 1, 40, 41, 42, 43};
    auto columns = kColumns;
    columns.erase(columns.begin() + 4);
    check_everything(TestTable(folder, {20, 0, 33}, columns, Io::kMmap, &map));
    check_everything(TestTable(folder, {53}, columns, Io::kPread, &map));
  });

  check::promise("every copy kernel gives the same batch", [] {
    const Folder folder;
    const TestTable data(folder, {40, 13}, {{.row_bytes = 20000}, {.row_bytes = 4096}});
    for (const CopyKernel& kernel : copy_kernels()) {
      set_copy_kernel(kernel.name);
      check_everything(data);
    }
    set_copy_kernel("auto");
  });

  check::promise("windows of one file: stride shorter than a row, and 0", [] {
    Bytes bytes(64);
    for (std::size_t i = 0; i < 64; ++i) bytes[i] = static_cast<std::byte>(i);
    for (std::int64_t stride : {0, 1, 3, 8}) {
      const Folder folder;
      write_file(folder / "windows", bytes);
      for (Io io : {Io::kMmap, Io::kPread}) {
        auto files = std::make_unique<FileCache>(io);
        files->add(folder / "windows", 64);
        const std::vector<std::int64_t> rows{7};
        std::vector<ColumnGroup> groups;
        groups.emplace_back(rows, Indices(), false);
        const Table table(std::move(files), {Source{0, {}}}, std::move(groups),
                          {Column{"w", 16, stride, {0}, {0}, false, 0}});
        Gatherer gatherer(table);
        const Indices indices{0, 1, 2, 3, 6, 5};
        Bytes out(96);
        gatherer.gather(table.columns()[0], indices, out.data(), Reading::kMapped);
        for (std::size_t i = 0; i < 96; ++i) {
          CHECK_EQUAL(static_cast<int>(out[i]),
                      indices[i / 16] * stride + static_cast<std::int64_t>(i % 16));
        }
      }
    }
  });

  check::promise(
      "more files than may be open: closed and opened again, while others hold them", [] {
        for (Io io : {Io::kMmap, Io::kPread}) {
          const Folder folder;
          const TestTable data(folder, std::vector<std::int64_t>(100, 3), {{.row_bytes = 40}}, io,
                               nullptr, {.mappings = 16, .descriptors = 4});
          check_everything(data);
          std::vector<std::thread> team;
          for (unsigned t = 0; t < 4; ++t) {
            team.emplace_back([&, t] {
              Gatherer gatherer(*data.table);
              for (unsigned i = 0; i < 30; ++i) {
                const auto reading = i % 2 == 0 ? Reading::kMapped : Reading::kCold;
                check_gather(gatherer, data, random_indices(300, 60, 100 * t + i), reading);
              }
            });
          }
          for (std::thread& thread : team) thread.join();
        }
      });

  check::promise("a file cut short in use: OsError with file, field and sample, again and again",
                 [] {
                   for (bool contiguous : {true, false}) {
                     const Folder folder;
                     const TestTable data(folder, {64, 64}, {{.row_bytes = 4096}});
                     const Column& column = data.table->columns()[0];
                     Gatherer gatherer(*data.table);
                     check_gather(gatherer, data, random_indices(128, 50, 1), Reading::kMapped);
                     std::filesystem::resize_file(data.paths[1], 20 * 4096);
                     for (int round = 0; round < 20; ++round) {
                       const Indices indices =
                           contiguous ? Indices{82, 83, 84, 85, 86} : Indices{64, 3, 100, 90};
                       const std::string message = gather_error<OsError>(gatherer, column, indices);
                       CHECK(contains(message, contiguous ? "sample 84" : "sample 100"));
                       CHECK(contains(message, "field0") && contains(message, "81920"));
                       check_gather(gatherer, data, {0, 63, 64, 83}, Reading::kMapped);
                       const std::string cold =
                           gather_error<OsError>(gatherer, column, indices, Reading::kCold);
                       CHECK(contains(cold, contiguous ? "sample 84" : "sample 100"));
                     }
                     // Who comes later opens a file that is already too short.
                     const TestTable late(folder, {1}, {{.row_bytes = 1}});
                     Gatherer other(*data.table);
                     const auto status = std::filesystem::file_size(data.paths[1]);
                     CHECK_EQUAL(status, 81920);
                   }
                 });

  check::promise("threads that meet a truncated file all get an error, none dies", [] {
    const Folder folder;
    const TestTable data(folder, {256}, {{.row_bytes = 8192}});
    std::atomic<int> errors{0};
    std::atomic<bool> cut{false};
    std::vector<std::thread> team;
    for (unsigned t = 0; t < 4; ++t) {
      team.emplace_back([&, t] {
        Gatherer gatherer(*data.table);
        Bytes out(64 * 8192);
        for (unsigned i = 0; i < 20 || errors.load() < 40; ++i) {
          try {
            gatherer.gather(data.table->columns()[0], random_indices(256, 64, i * 4 + t),
                            out.data(), Reading::kMapped);
          } catch (const OsError& error) {
            CHECK(cut.load());
            CHECK_EQUAL(error.code(), EIO);
            ++errors;
          }
          if (t == 0 && i == 10) {
            cut = true;
            std::filesystem::resize_file(data.paths[0], 100 * 8192);
          }
        }
      });
    }
    for (std::thread& thread : team) thread.join();
  });

  check::promise("a file that is short, gone or unreadable when first touched is named", [] {
    for (Io io : {Io::kMmap, Io::kPread}) {
      const Folder folder;
      const TestTable data(folder, {4, 4, 4}, {{.row_bytes = 10}}, io);
      std::filesystem::resize_file(data.paths[0], 39);
      std::filesystem::remove(data.paths[1]);
      std::filesystem::remove(data.paths[2]);
      std::filesystem::create_directory(data.paths[2]);
      Gatherer gatherer(*data.table);
      const Column& column = data.table->columns()[0];
      const std::string message = gather_error<FormatError>(gatherer, column, {1});
      CHECK(contains(message, data.paths[0]) && contains(message, "39"));
      Bytes out(10);
      for (std::size_t shard : {1, 2}) {
        try {
          gatherer.gather(column, Indices{static_cast<std::int64_t>(4 * shard)}, out.data(),
                          Reading::kMapped);
          CHECK(false);
        } catch (const OsError& error) {
          CHECK(error.path() == data.paths[shard]);
          CHECK(shard == 2 || error.code() == ENOENT);
        }
      }
    }
  });

  check::promise("a file replaced or removed in use goes on through its mapping, cold too", [] {
    const Folder folder;
    const TestTable data(folder, {30, 30}, {{.row_bytes = 64}}, Io::kMmap);
    Gatherer gatherer(*data.table);
    const Indices indices = random_indices(60, 40, 5);
    check_gather(gatherer, data, indices, Reading::kMapped);
    write_file(folder / "new", Bytes(30 * 64));
    std::filesystem::rename(folder / "new", data.paths[0]);
    std::filesystem::remove(data.paths[1]);
    check_gather(gatherer, data, indices, Reading::kMapped);
    check_gather(gatherer, data, indices, Reading::kCold);
  });

  check::promise("a replaced file is not taken for the old one when it must be opened again", [] {
    const Folder folder;
    const TestTable data(folder, std::vector<std::int64_t>(100, 1), {{.row_bytes = 8}}, Io::kMmap,
                         nullptr, {.mappings = 4, .descriptors = 4});
    Indices all;
    for (std::int64_t i = 0; i < 100; ++i) all.push_back(i);
    Gatherer gatherer(*data.table);
    check_gather(gatherer, data, all, Reading::kMapped);
    write_file(folder / "new", Bytes(8));
    std::filesystem::rename(folder / "new", data.paths[0]);
    check_gather(gatherer, data, {5, 6, 7}, Reading::kMapped);  // drops the pins
    const std::string message = gather_error<OsError>(gatherer, data.table->columns()[0], {0});
    CHECK(contains(message, "replaced"));
  });

  check::promise("a file that grows changes nothing", [] {
    const Folder folder;
    const TestTable data(folder, {30}, {{.row_bytes = 64}});
    std::filesystem::resize_file(data.paths[0], 1 << 20);
    check_everything(data);
  });

  check::promise("indices outside the samples are refused, the first by name", [] {
    const Folder folder;
    const TestTable data(folder, {4, 6}, {{.row_bytes = 8}});
    for (std::int64_t wrong : {std::int64_t{10}, std::int64_t{-1}, INT64_MAX, INT64_MIN}) {
      const Indices indices{0, 9, wrong, 11};
      const std::string message =
          CHECK_THROWS(std::out_of_range, data.table->check_indices(indices));
      CHECK(contains(message, std::to_string(wrong)) && contains(message, "10 samples"));
    }
  });

  check::promise("an index map that is overwritten in use gives an error, not a wild read", [] {
    Bytes memory(80);
    Indices map{0, 1, 2, 9};
    const std::vector<std::int64_t> rows{10};
    std::vector<ColumnGroup> groups;
    groups.emplace_back(rows, map, true);
    const Table table(std::make_unique<FileCache>(Io::kAuto), {Source{-1, memory}},
                      std::move(groups), {Column{"a", 8, 8, {0}, {0}, false, 0}});
    Gatherer gatherer(table);
    for (std::int64_t wrong : {std::int64_t{10}, std::int64_t{-1}, INT64_MAX}) {
      map[2] = wrong;
      gather_error<std::out_of_range>(gatherer, table.columns()[0], {2});
    }
  });

  check::promise("zero-width fields over an empty file are never cold and never opened", [] {
    const Folder folder;
    const TestTable data(folder, {10}, {{.row_bytes = 0}});
    Gatherer gatherer(*data.table);
    CHECK(gatherer.resolver().is_resident({data.table->columns()[0], Indices{1, 2, 3}}));
    gatherer.resolver().will_need({data.table->columns()[0], Indices{1, 2, 3}});
    gatherer.gather(data.table->columns()[0], Indices{1, 2, 3}, nullptr, Reading::kMapped);
  });
}
