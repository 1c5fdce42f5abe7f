#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine_fixtures.h"

using namespace fastload;
using namespace fixtures;

namespace {

const std::vector<ColumnSpec> kColumns{
    {.row_bytes = 300}, {.row_bytes = 8}, {.row_bytes = 1, .in_memory = true, .boolean = true}};

// Counts the batches that workers have begun.
class Counted final : public IndexSource {
 public:
  explicit Counted(const EpochSpec& spec) : plan_(spec) {}
  State state(std::int64_t k) const override {
    return k < plan_.batch_count() ? State::kReady : State::kEnd;
  }
  void take(std::int64_t k, Indices& out, Indices* /*draws*/) override {
    plan_.indices(k, out);
    const std::int64_t ahead = ++taken - delivered.load();
    std::int64_t most = most_ahead.load();
    while (ahead > most && !most_ahead.compare_exchange_weak(most, ahead)) {
    }
  }
  std::atomic<std::int64_t> taken{0}, delivered{0}, most_ahead{0};

 private:
  const EpochPlan plan_;
};

}  // namespace

int main() {
  alarm(240);  // a lost wake-up is a failure, not a hang

  check::promise("0, 1, 2 and 7 workers deliver the same batches in the same order", [] {
    const Folder folder;
    const TestTable data(folder, {100, 300, 17}, kColumns);
    for (int workers : {0, 1, 2, 7}) {
      for (std::int64_t depth : {1, 2, 3, 64}) {
        for (std::int64_t batch : {1, 32, 417, 1000}) {
          const EpochSpec spec = shuffled(417, batch);
          Engine engine(data.table, new_pool(), plan_order(spec), {workers, depth});
          check_epoch(engine, data, spec);
        }
      }
    }
  });

  check::promise(
      "never more than `depth` batches are filling or ready; delivered ones don't count", [] {
        const Folder folder;
        const TestTable data(folder, {600}, kColumns);
        for (std::int64_t depth : {1, 2, 5, 16}) {
          for (int workers : {0, 1, 3}) {
            const auto order = std::make_shared<Counted>(shuffled(600, 4));
            Engine engine(data.table, new_pool(), order, {workers, depth});
            std::vector<std::unique_ptr<BatchTask>> kept;
            while (auto task = next_batch(engine)) {
              ++order->delivered;
              kept.push_back(std::move(task));
              if (kept.size() % 30 != 0 || workers == 0) continue;
              const std::int64_t begun =
                  std::min<std::int64_t>(150, order->delivered.load() + depth);
              const auto patience = Clock::now() + std::chrono::seconds(60);
              // Idle workers are woken only when there is half a depth of room.
              while (order->taken.load() < begun - depth / 2 && Clock::now() < patience) {
                std::this_thread::sleep_for(milliseconds(1));
              }
              CHECK(order->taken.load() >= begun - depth / 2);
              std::this_thread::sleep_for(milliseconds(2));
              CHECK(order->taken.load() <= begun);
            }
            CHECK_EQUAL(kept.size(), 150);
            // One more than depth can be counted: the batch that is just being handed out.
            CHECK(order->most_ahead.load() <= depth + 1);
          }
        }
      });

  check::promise("pushed batches of any size, empty ones too, arrive in order", [] {
    const Folder folder;
    const TestTable data(folder, {50}, kColumns);
    for (int workers : {0, 1, 2, 7}) {
      const auto order = std::make_shared<PushedOrder>();
      Engine engine(data.table, new_pool(), order, {workers, 4});
      std::unique_ptr<BatchTask> task;
      CHECK(engine.try_next(task) == Engine::Result::kPending);
      CHECK(engine.next(Clock::now() + milliseconds(5), task) == Engine::Result::kPending);
      std::thread pusher([&] {
        for (std::int64_t k = 0; k < 200; ++k) {
          order->push(Indices(static_cast<std::size_t>(k % 5), k % 50));
          if (k % 20 == 0) std::this_thread::sleep_for(milliseconds(2));
        }
        std::this_thread::sleep_for(milliseconds(20));
        order->finish();
      });
      for (std::int64_t k = 0; k < 200; ++k) {
        task = next_batch(engine);
        check_batch(data, *task, k, Indices(static_cast<std::size_t>(k % 5), k % 50));
      }
      CHECK(next_batch(engine) == nullptr);
      pusher.join();
    }
  });

  check::promise("a waiting consumer hears at once of a batch, and of the end", [] {
    const Folder folder;
    const TestTable data(folder, {50}, kColumns);
    for (int workers : {0, 2}) {
      for (bool end : {false, true}) {
        check_soon([&] {
          Clock::time_point changed;
          const auto order = std::make_shared<PushedOrder>();
          Engine engine(data.table, new_pool(), order, {workers, 4});
          std::thread pusher([&] {
            std::this_thread::sleep_for(milliseconds(30));
            changed = Clock::now();
            end ? order->finish() : order->push({1, 2, 3});
          });
          std::unique_ptr<BatchTask> task;
          const auto result = engine.next(Clock::now() + std::chrono::seconds(60), task);
          const auto heard = Clock::now();
          pusher.join();
          CHECK(result == (end ? Engine::Result::kEnd : Engine::Result::kBatch));
          return heard - changed;
        });
      }
    }
  });

  check::promise("an error is thrown at its batch's turn; the batches around it are delivered", [] {
    const Folder folder;
    const TestTable data(folder, {60}, kColumns);
    for (int workers : {0, 1, 3}) {
      const auto order = std::make_shared<PushedOrder>();
      Engine engine(data.table, new_pool(), order, {workers, 8});
      for (std::int64_t k = 0; k < 40; ++k) order->push({k % 7 == 3 ? 60 + k : k, 1});
      order->finish();
      for (std::int64_t k = 0; k < 40; ++k) {
        if (k % 7 == 3) {
          const std::string message = CHECK_THROWS(std::out_of_range, next_batch(engine));
          CHECK(message.find("index " + std::to_string(60 + k)) != std::string::npos);
        } else {
          check_batch(data, *next_batch(engine), k, {k, 1});
        }
      }
      CHECK(next_batch(engine) == nullptr);
      CHECK_EQUAL(engine.stats().batches, 40 - 6);
    }
  });

  check::promise("a file cut short: its batches raise and name the sample, the others go on", [] {
    for (int workers : {0, 1, 3}) {
      const Folder folder;
      const TestTable data(folder, {64, 64}, {{.row_bytes = 5000}, {.row_bytes = 8}});
      EpochSpec spec = shuffled(128, 8);
      spec.order = OrderKind::kSequential;
      Engine engine(data.table, new_pool(), plan_order(spec), {workers, 1});
      check_batch(data, *next_batch(engine), 0, {0, 1, 2, 3, 4, 5, 6, 7});
      {
        Engine other(data.table, new_pool(), plan_order(spec), {0, 2});
        check_epoch(other, data, spec);
      }
      std::filesystem::resize_file(data.paths[1], 5000 * 32 - 1);  // of field 0, second shard
      int errors = 0;
      for (std::int64_t k = 1; k < 16; ++k) {
        try {
          const auto task = next_batch(engine);
          CHECK_EQUAL(task->number, k);
        } catch (const OsError& error) {
          CHECK(std::string(error.what()).find("field0") != std::string::npos);
          CHECK(error.path() == data.paths[1]);
          ++errors;
          CHECK(k >= 11);
        }
      }
      CHECK(errors >= 3 && errors <= 5);  // the batch of the cut page may still be whole
      CHECK(next_batch(engine) == nullptr);
    }
  });

  check::promise("batches larger than a piece are shared by the workers, and fail as one", [] {
    const Folder folder;
    const std::vector<ColumnSpec> columns{{.row_bytes = 1 << 20}, {.row_bytes = 700'000}};
    const TestTable data(folder, {7, 5}, columns);
    for (int workers : {0, 1, 4}) {
      const EpochSpec spec = shuffled(12, 5);
      Engine engine(data.table, new_pool(), plan_order(spec), {workers, 2});
      check_epoch(engine, data, spec);
    }
    std::filesystem::resize_file(data.paths[1], 1 << 20);
    for (int workers : {0, 1, 4}) {
      const auto order = std::make_shared<PushedOrder>();
      Engine engine(data.table, new_pool(), order, {workers, 2});
      const Indices good{0, 1, 2, 3, 4, 5, 6}, bad{0, 1, 2, 8, 9, 10, 11};
      for (int i = 0; i < 6; ++i) order->push(i % 2 == 0 ? good : bad);
      order->finish();
      for (int i = 0; i < 6; ++i) {
        if (i % 2 == 0) {
          check_batch(data, *next_batch(engine), i, good);
        } else {
          CHECK_THROWS(std::runtime_error, next_batch(engine));
        }
      }
    }
  });

  check::promise("cold data, small rows and large, by mapping and by pread: the same batches", [] {
    for (Io io : {Io::kMmap, Io::kPread}) {
      for (int workers : {0, 1, 3}) {
        const Folder folder;
        const TestTable data(folder, {300, 300}, {{.row_bytes = 64}, {.row_bytes = 20'000}}, io);
        for (const std::string& path : data.paths) make_cold(path);
        const EpochSpec spec = shuffled(600, 16);
        Engine engine(data.table, new_pool(), plan_order(spec), {workers, 4});
        check_epoch(engine, data, spec);
      }
    }
  });

  check::promise("several engines on one table and one pool do not disturb each other", [] {
    const Folder folder;
    const TestTable data(folder, {100, 100}, kColumns);
    const auto pool = new_pool();
    std::vector<std::thread> team;
    for (std::uint64_t t = 0; t < 5; ++t) {
      team.emplace_back([&, t] {
        for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
          const EpochSpec spec = shuffled(200, 7, t * 10 + epoch);
          Engine engine(data.table, pool, plan_order(spec), {static_cast<int>(t % 3), 3});
          check_epoch(engine, data, spec);
        }
      });
    }
    for (std::thread& thread : team) thread.join();
    CHECK_EQUAL(pool->stats().used_bytes, 0);
  });

  check::promise("consumers on several threads get each batch exactly once", [] {
    const Folder folder;
    const TestTable data(folder, {400}, kColumns);
    for (int workers : {0, 2}) {
      Engine engine(data.table, new_pool(), plan_order(shuffled(400, 2)), {workers, 4});
      std::mutex mutex;
      std::set<std::int64_t> seen;
      std::vector<std::thread> team;
      for (int t = 0; t < 3; ++t) {
        team.emplace_back([&] {
          while (const auto task = next_batch(engine)) {
            const std::lock_guard lock(mutex);
            CHECK(seen.insert(task->number).second);
          }
        });
      }
      for (std::thread& thread : team) thread.join();
      CHECK_EQUAL(seen.size(), 200);
    }
  });

  check::promise("no consumer waits beyond its deadline, even behind another one", [] {
    const Folder folder;
    const TestTable data(folder, {10}, kColumns);
    const auto order = std::make_shared<PushedOrder>();
    Engine engine(data.table, new_pool(), order, {1, 2});
    std::thread first([&] {
      std::unique_ptr<BatchTask> task;
      engine.next(Clock::now() + std::chrono::seconds(60), task);
    });
    std::this_thread::sleep_for(milliseconds(20));
    check_soon([&] {
      const auto start = Clock::now();
      std::unique_ptr<BatchTask> task;
      CHECK(engine.next(start + milliseconds(20), task) == Engine::Result::kPending);
      return Clock::now() - start;
    });
    order->finish();
    first.join();
  });

  check::promise("slow and fast consumers; after the start no slot is allocated any more", [] {
    const Folder folder;
    const TestTable data(folder, {900}, {{.row_bytes = 20'000}, {.row_bytes = 8}});
    const auto pool = new_pool();
    std::int64_t allocations = 0;
    for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
      const EpochSpec spec = shuffled(900, 9, epoch);
      Engine engine(data.table, pool, plan_order(spec), {2, 4});
      for (int k = 0; const auto task = next_batch(engine); ++k) {
        if (epoch % 2 == 0 && k % 10 == 0) std::this_thread::sleep_for(milliseconds(3));
        if (epoch == 0 && k == 50) allocations = pool->stats().allocation_count;
      }
    }
    // Two fields of the batches in circulation, and of those that a second worker began while the
    // first was setting the circulation aside.
    CHECK(pool->stats().allocation_count <= 2 * (4 + 4 + 3));
    CHECK(pool->stats().allocation_count == allocations);
  });

  check::promise("a consumer that keeps every batch is never stalled", [] {
    const Folder folder;
    const TestTable data(folder, {300}, {{.row_bytes = 9000}});
    const auto pool = new_pool();
    const EpochSpec spec = shuffled(300, 10);
    std::vector<std::unique_ptr<BatchTask>> kept;
    {
      Engine engine(data.table, pool, plan_order(spec), {2, 2});
      while (auto task = next_batch(engine)) kept.push_back(std::move(task));
    }
    const EpochPlan plan(spec);
    Indices indices;
    for (std::int64_t k = 0; k < 30; ++k) {
      plan.indices(k, indices);
      check_batch(data, *kept[static_cast<std::size_t>(k)], k, indices);
    }
    kept.clear();
    CHECK_EQUAL(pool->stats().used_bytes, 0);
    CHECK(pool->stats().free_bytes <= 6 * SlotPool::capacity_for(90'000));
  });

  check::promise("statistics count what was delivered", [] {
    const Folder folder;
    const TestTable data(folder, {30}, kColumns);
    Engine engine(data.table, new_pool(), plan_order(shuffled(30, 8)), {1, 2});
    next_batch(engine);
    next_batch(engine);
    const LoadFigures stats = engine.stats();
    CHECK_EQUAL(stats.batches, 2);
    CHECK_EQUAL(stats.samples, 16);
    CHECK_EQUAL(stats.bytes, 16 * 309);
    while (engine.stats().ready < 2) std::this_thread::sleep_for(milliseconds(1));
    CHECK(engine.describe_due() == "ready");
  });

  check::promise("a table without columns has batches without fields", [] {
    const std::vector<std::int64_t> rows{10};
    std::vector<ColumnGroup> groups;
    groups.emplace_back(rows, Indices(), false);
    const auto table =
        std::make_shared<const Table>(std::make_unique<FileCache>(Io::kAuto), std::vector<Source>{},
                                      std::move(groups), std::vector<Column>{});
    Engine engine(table, new_pool(), plan_order(shuffled(10, 3)), {1, 2});
    for (std::size_t count : {3, 3, 3, 1}) CHECK_EQUAL(next_batch(engine)->indices.size(), count);
    CHECK(next_batch(engine) == nullptr);
  });

  check::promise("impossible options are refused, and nothing is left behind", [] {
    const Folder folder;
    const TestTable data(folder, {10}, kColumns);
    const auto order = plan_order(shuffled(10, 2));
    const auto make = [&](int workers, std::int64_t depth) {
      const Engine engine(data.table, new_pool(), order, {workers, depth});
    };
    CHECK_THROWS(std::invalid_argument, make(-1, 2));
    CHECK_THROWS(std::invalid_argument, make(1, 0));
    CHECK_THROWS(std::invalid_argument, make(1, INT64_MAX));
    make(0, std::int64_t{1} << 31);
    make(1, std::int64_t{1} << 31);
  });
}
