#include "storage/checksums.h"

#include <atomic>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "checksum_fixtures.h"

using namespace fastload;
using namespace fixtures;

namespace {

constexpr std::int64_t kBlock = CheckedTable::kBlock;
constexpr std::int64_t kHeader = CheckedTable::kHeader;

// The blocks of the bytes [begin, end) of a source that are still to be checked.
Indices unchecked(const Table& table, std::int32_t source, std::int64_t begin, std::int64_t end) {
  Indices blocks;
  table.checksums()->unchecked(source, begin, end, blocks);
  return blocks;
}

std::int64_t reached_blocks(const CheckedTable& data, std::size_t shard) {
  const std::int64_t bytes = data.rows[shard] * 1064;
  return (bytes + kBlock - 1) / kBlock;
}

Table table_with(const CheckedTable& data, const Source& source) {
  auto files = std::make_unique<FileCache>(Io::kAuto);
  Source made = source;
  if (source.file >= 0) {
    made.file = files->add(data.paths[0], static_cast<std::int64_t>(data.files[0].size()));
  }
  std::vector<ColumnGroup> groups;
  const std::vector<std::int64_t> rows{1};
  groups.emplace_back(rows, std::span<const std::int64_t>(), false);
  return Table(std::move(files), {made}, std::move(groups), {{"x", 8, 8, {0}, {0}, false, 0}});
}

}  // namespace

int main() {
  check::promise("a table without checksums has none", [] {
    const Folder folder;
    const TestTable data(folder, {3}, {{8}});
    CHECK(data.table->checksums() == nullptr);
  });

  for (const Io io : {Io::kMmap, Io::kPread}) {
    check::promise("each block is checked once, and then all is known to be good", [io] {
      const Folder folder;
      const CheckedTable data(folder, {50, 70, 0, 3}, io);
      Checksums& checksums = *data.table->checksums();
      std::int64_t next = 0;
      for (std::size_t s = 0; s < data.rows.size(); ++s) {
        const auto source = static_cast<std::int32_t>(s);
        const Indices blocks = unchecked(*data.table, source, 0, data.ends[s] + 5);
        CHECK_EQUAL(blocks.size(), reached_blocks(data, s));
        for (const std::int64_t block : blocks) {
          CHECK(!checksums.all_good());
          checksums.will_need(block);
          CHECK(checksums.check(block));
          CHECK(checksums.check(block));
          CHECK(block >= next);
          next = block + 1;
        }
        CHECK(unchecked(*data.table, source, 0, data.ends[s]).empty());
      }
      CHECK(checksums.all_good());
      CHECK(checksums.complaints().empty());
    });

    check::promise("a bad block is named with its rows, and remembered", [io] {
      const Folder folder;
      CheckedTable data(folder, {50, 70}, io);
      data.flip(1, kHeader + 2 * kBlock + 17);
      data.flip(1, kHeader + 3 * kBlock - 1);
      Checksums& checksums = *data.table->checksums();
      const Indices blocks = unchecked(*data.table, 1, 0, data.ends[1]);
      CHECK(checksums.check(blocks[1]));
      CHECK(!checksums.check(blocks[2]));
      // Rows of 64 bytes end at 4480; block 2 holds bytes 8192 to 12287 of the data.
      const std::string text = data.paths[1] + ": block 2 (bytes 8292 to 12387) does not fit its " +
                               "checksum; rows 53 to 57 of field 'field1'";
      CHECK(checksums.complaint(blocks[2]) == text);
      data.flip(1, kHeader + 2 * kBlock + 17);
      data.flip(1, kHeader + 3 * kBlock - 1);
      CHECK(!checksums.check(blocks[2]));
      CHECK(checksums.complaints() == std::vector<std::string>{text});
      for (const std::int64_t block : blocks) checksums.check(block);
      for (const std::int64_t block : unchecked(*data.table, 0, 0, data.ends[0])) {
        CHECK(checksums.check(block));
      }
      CHECK(!checksums.all_good());
      CHECK(unchecked(*data.table, 1, 0, data.ends[1]) == Indices{blocks[2]});
    });

    check::promise("a block names the rows of all fields in it", [io] {
      const Folder folder;
      CheckedTable data(folder, {70}, io);
      data.flip(0, kHeader + 4479);
      Checksums& checksums = *data.table->checksums();
      CHECK(!checksums.check(1));
      CHECK(
          checksums.complaint(1).ends_with("; rows 64 to 69 of field 'field0', "
                                           "rows 0 to 3 of field 'field1'"));
    });

    check::promise("a wrong checksum makes its block bad", [io] {
      const Folder folder;
      CheckedTable data(folder, {50}, io);
      data.flip(0, data.ends[0] + 4 * 3 + 2);
      for (std::int64_t block = 0; block < reached_blocks(data, 0); ++block) {
        CHECK(data.table->checksums()->check(block) == (block != 3));
      }
    });

    check::promise("a file that was cut is an OsError, and its blocks stay unchecked", [io] {
      const Folder folder;
      CheckedTable data(folder, {4000}, io);
      Checksums& checksums = *data.table->checksums();
      CHECK(checksums.check(0));
      std::filesystem::resize_file(data.paths[0], 1 << 20);
      const std::string message = CHECK_THROWS(OsError, checksums.check(1));
      CHECK(message.find("cut to 1048576 bytes") != std::string::npos);
      CHECK(unchecked(*data.table, 0, kHeader + kBlock, kHeader + 2 * kBlock).size() == 1);
      CHECK(checksums.complaints().empty());
    });
  }

  check::promise("every byte belongs to its block", [] {
    const Folder folder;
    const CheckedTable data(folder, {50});
    const std::int64_t last = reached_blocks(data, 0) - 1;
    for (std::int64_t at = 0; at < data.ends[0] + 20; ++at) {
      const std::int64_t block = (at - kHeader) / kBlock;
      const bool none = at < kHeader || at >= data.ends[0] || block > last;
      CHECK(unchecked(*data.table, 0, at, at + 1) == (none ? Indices{} : Indices{block}));
    }
    CHECK(unchecked(*data.table, 0, 200, 200).empty());
  });

  check::promise("threads that check the same blocks agree, and the count comes out even", [] {
    for (int round = 0; round < 20; ++round) {
      const Folder folder;
      CheckedTable data(folder, {300, 200});
      const bool damaged = round % 2 == 0;
      if (damaged) data.flip(1, kHeader + 5 * kBlock);
      Checksums& checksums = *data.table->checksums();
      const Indices second = unchecked(*data.table, 1, 0, data.ends[1]);
      const std::int64_t count = second.back() + 1;
      const std::int64_t bad = damaged ? second[5] : -1;
      std::vector<std::thread> team;
      std::atomic<int> wrong{0};
      for (unsigned t = 0; t < 4; ++t) {
        team.emplace_back([&, t] {
          std::mt19937_64 random(t);
          for (std::int64_t i = 0; i < count * 4; ++i) {
            const auto block = static_cast<std::int64_t>(
                i < count
                    ? i
                    : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count)));
            if (checksums.check(block) != (block != bad)) ++wrong;
          }
        });
      }
      for (std::thread& thread : team) thread.join();
      CHECK_EQUAL(wrong.load(), 0);
      CHECK(checksums.all_good() == !damaged);
      CHECK_EQUAL(checksums.complaints().size(), damaged ? 1 : 0);
    }
  });

  check::promise("blocks and checksums must lie inside their file", [] {
    const Folder folder;
    const CheckedTable data(folder, {5});
    const auto size = static_cast<std::int64_t>(data.files[0].size());
    const std::int64_t huge = std::int64_t{1} << 62;
    table_with(data, {0, {}, {0, size - 4, std::int64_t{1} << 40, size - 4}});
    for (const BlockExtent& extent : std::vector<BlockExtent>{
             {-1, 100, 64, 200},
             {0, size + 1, 64, 200},
             {100, 50, 64, 200},
             {0, 100, 64, -1},
             {0, 100, 64, size - 7},
             {0, size, 1, size - 100},
             {0, 100, 64, huge},
         }) {
      CHECK_THROWS(FormatError, table_with(data, {0, {}, extent}));
    }
    CHECK_THROWS(std::invalid_argument, table_with(data, {0, {}, {0, 100, 100, 200}}));
    CHECK_THROWS(std::invalid_argument, table_with(data, {0, {}, {0, 100, -64, 200}}));
    CHECK_THROWS(std::invalid_argument, table_with(data, {-1, data.files[0], {0, 100, 64, 200}}));
  });
}
