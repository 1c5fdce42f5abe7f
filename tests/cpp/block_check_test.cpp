#include "batch/block_check.h"

#include <atomic>
#include <thread>

#include "base/error.h"
#include "checksum_fixtures.h"
#include "engine_fixtures.h"

using namespace fastload;
using namespace fixtures;

namespace {

constexpr std::int64_t kBlock = CheckedTable::kBlock;
constexpr std::int64_t kHeader = CheckedTable::kHeader;

// The indices that touch the block, and those that do not, in order.
std::pair<Indices, Indices> split(const CheckedTable& data, const Indices& indices,
                                  std::size_t shard, std::int64_t block,
                                  const Indices* map = nullptr) {
  std::pair<Indices, Indices> parts;
  for (const std::int64_t index : indices) {
    const std::int64_t row = map != nullptr ? (*map)[static_cast<std::size_t>(index)] : index;
    (data.touches(row, shard, block) ? parts.first : parts.second).push_back(index);
  }
  return parts;
}

// Throws for a bad block.
void check_all(BlockCheck& check, Indices indices) { check.check_rows(indices, nullptr); }

}  // namespace

int main() {
  check::promise("each sample is refused exactly if it touches the bad block", [] {
    const Folder folder;
    CheckedTable data(folder, {40, 60});
    const Indices rows = all_of(data.total());
    for (std::size_t shard = 0; shard < 2; ++shard) {
      for (std::int64_t block = 0; block * kBlock < data.rows[shard] * 1064; ++block) {
        const std::int64_t at = kHeader + block * kBlock + 33;
        data.flip(shard, at);
        const auto [bad, good] = split(data, rows, shard, block);
        CHECK(!bad.empty() && !good.empty());
        for (const std::int64_t row : rows) {
          if (row % 10 == 0) data.open_again();  // with and without something known
          BlockCheck check(*data.table);
          const Indices one{row};
          if (data.touches(row, shard, block)) {
            const std::string message = CHECK_THROWS(FormatError, check_all(check, one));
            CHECK(message.starts_with(data.paths[shard] + ": block " + std::to_string(block)));
          } else {
            check_all(check, one);
          }
        }
        data.open_again();
        for (int again = 0; again < 2; ++again) {
          BlockCheck check(*data.table);
          Indices indices = rows, missing;
          Indices draws, kept;
          for (const std::int64_t row : rows) draws.push_back(-row);
          for (const std::int64_t row : good) kept.push_back(-row);
          check.check_rows(indices, &missing, &draws);
          CHECK(missing == bad);
          CHECK(indices == good);
          CHECK(draws == kept);
          CHECK_THROWS(FormatError, check_all(check, rows));
          check_all(check, good);
        }
        data.flip(shard, at);
        data.open_again();
      }
    }
  });

  check::promise("a bad pad that no sample touches is nobody's error", [] {
    const Folder folder;
    CheckedTable data(folder, {40});
    data.flip(0, data.ends[0] - 1);
    BlockCheck check(*data.table);
    check_all(check, all_of(40));
    CHECK(data.table->checksums()->all_good());
  });

  check::promise("through an index map the samples are those of the dataset", [] {
    const Folder folder;
    const Indices map{59, 0, 10, 59, 30};
    CheckedTable data(folder, {30, 30});
    data.flip(1, kHeader + 64 * 30 + 29 * 1000 + 500);
    data.open_again(Io::kAuto, &map);
    const std::int64_t block = (64 * 30 + 29 * 1000 + 500) / kBlock;
    BlockCheck check(*data.table);
    Indices indices = all_of(5), missing;
    check.check_rows(indices, &missing);
    const auto [bad, good] = split(data, all_of(5), 1, block, &map);
    CHECK(missing == bad);
    CHECK(bad == (Indices{0, 3}));
    CHECK(indices == good);
    data.flip(1, kHeader + 64 * 30 + 29 * 1000 + 500);
    data.open_again(Io::kAuto, &map);
    BlockCheck again(*data.table);
    check_all(again, all_of(5));
    CHECK(again.idle());  // no sample needs the other blocks
  });

  check::promise("no thread misses a bad block", [] {
    for (int round = 0; round < 10; ++round) {
      const Folder folder;
      CheckedTable data(folder, {300});
      data.flip(0, kHeader + 9 * kBlock);
      std::vector<std::thread> team;
      std::atomic<int> wrong{0};
      const auto [bad, good] = split(data, all_of(300), 0, 9);
      for (int t = 0; t < 4; ++t) {
        team.emplace_back([&, bad = bad, good = good] {
          BlockCheck check(*data.table);
          Indices indices = all_of(300), missing;
          check.check_rows(indices, &missing);
          if (missing != bad || indices != good) ++wrong;
        });
      }
      for (std::thread& thread : team) thread.join();
      CHECK_EQUAL(wrong.load(), 0);
    }
  });

  check::promise("a check ends when its engine stops", [] {
    const Folder folder;
    const CheckedTable data(folder, {300});
    const std::atomic<bool> stopping{true};
    BlockCheck check(*data.table, &stopping);
    CHECK_THROWS(StoppedError, check_all(check, all_of(300)));
    BlockCheck other(*data.table);
    check_all(other, all_of(300));
    check_all(check, all_of(300));  // nothing is left to check
  });

  for (const int workers : {0, 1, 3}) {
    check::promise("an engine raises for the batch of a bad sample, and goes on", [workers] {
      const Folder folder;
      CheckedTable data(folder, {400});
      data.flip(0, kHeader + 64 * 400 + 205 * 1000 + 7);
      const std::int64_t block = (64 * 400 + 205 * 1000 + 7) / kBlock;
      EpochSpec spec = shuffled(400, 7);
      const EpochPlan plan(spec);
      Engine engine(data.table, new_pool(), plan_order(spec), {workers, 3});
      Indices indices;
      for (std::int64_t k = 0; k < plan.batch_count(); ++k) {
        plan.indices(k, indices);
        if (split(data, indices, 0, block).first.empty()) {
          const auto task = next_batch(engine);
          CHECK(task->indices == indices);
          CHECK(task->missing.empty());
        } else {
          CHECK_THROWS(FormatError, next_batch(engine));
        }
      }
      CHECK(next_batch(engine) == nullptr);
      CHECK_EQUAL(engine.stats().missing, 0);
    });

    check::promise("an engine that skips delivers the rest, and says what is missing", [workers] {
      const Folder folder;
      CheckedTable data(folder, {400});
      data.flip(0, kHeader + 64 * 400 + 205 * 1000 + 7);
      const std::int64_t block = (64 * 400 + 205 * 1000 + 7) / kBlock;
      const Indices bad = split(data, all_of(400), 0, block).first;
      for (const std::int64_t batch : {1, 7, 400}) {
        EpochSpec spec = shuffled(400, batch);
        const EpochPlan plan(spec);
        Engine engine(data.table, new_pool(), plan_order(spec), {workers, 3, OnError::kSkip});
        Indices indices;
        for (std::int64_t k = 0; k < plan.batch_count(); ++k) {
          plan.indices(k, indices);
          const auto [out, in] = split(data, indices, 0, block);
          auto task = next_batch(engine);
          CHECK(task->indices == in);
          CHECK(task->missing == out);
          for (std::size_t c = 0; c < 2; ++c) {
            const std::byte* at = task->slots[c].data();
            for (const std::int64_t row : in) {
              for (std::int64_t i = 0; i < CheckedTable::kRowBytes[c]; ++i, ++at) {
                CHECK(*at == expected(c, row, i));
              }
            }
          }
          engine.recycle(std::move(task));
        }
        CHECK(next_batch(engine) == nullptr);
        CHECK_EQUAL(engine.stats().missing, bad.size());
        CHECK_EQUAL(engine.stats().samples, 400 - static_cast<std::int64_t>(bad.size()));
      }
    });
  }
}
