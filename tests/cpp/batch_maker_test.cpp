// A batch maker by itself: no engine, no order.
#include "engine/batch_maker.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine_fixtures.h"

using namespace fixtures;
using fastload::BatchMaker;
using fastload::Piece;

namespace {

const std::vector<ColumnSpec> kColumns{{.row_bytes = 300}, {.row_bytes = 9, .gap = 1}};

std::unique_ptr<BatchTask> task_of(const Indices& indices) {
  auto task = std::make_unique<BatchTask>();
  task->restart(0);
  task->indices = indices;
  return task;
}

}  // namespace

int main() {
  check::promise("a small batch has one piece per field; the last one completes it", [] {
    const Folder folder;
    const TestTable data(folder, {20, 30}, kColumns);
    const std::atomic<bool> stopping{false};
    BatchMaker maker(data.table, new_pool(), {}, stopping);
    BatchMaker::Scratch scratch(maker);
    const Indices indices{49, 0, 20, 19, 20};
    const auto task = task_of(indices);
    maker.prepare(scratch, *task);
    CHECK(!BatchMaker::is_shared(*task));
    CHECK_EQUAL(task->pieces.size(), 2);
    CHECK(!maker.gather(scratch, *task, task->pieces[1]));
    CHECK(maker.gather(scratch, *task, task->pieces[0]));
    CHECK(task->error == nullptr);
    check_batch(data, *task, 0, indices);
  });

  check::promise("threads gather the pieces of one large batch while others prepare theirs", [] {
    const Folder folder;
    const TestTable data(folder, {40000}, kColumns);
    const std::atomic<bool> stopping{false};
    BatchMaker maker(data.table, new_pool(), {2, 4}, stopping);
    BatchMaker::Scratch first(maker);
    Indices indices;  // 6 MiB
    for (std::int64_t i = 0; i < 20000; ++i) indices.push_back(i * 7919 % 40000);
    const auto shared = task_of(indices);
    maker.prepare(first, *shared);
    CHECK(BatchMaker::is_shared(*shared));
    CHECK(shared->pieces.size() > 2);
    std::atomic<std::size_t> next{0};
    std::atomic<int> last{0};
    std::barrier<> ready(3);
    std::vector<std::thread> threads;
    for (std::int64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        BatchMaker::Scratch scratch(maker);
        ready.arrive_and_wait();
        const auto own = task_of({t, 39999 - t});
        maker.prepare(scratch, *own);
        for (Piece& piece : own->pieces) maker.gather(scratch, *own, piece);
        check_batch(data, *own, 0, {t, 39999 - t});
        for (std::size_t i = next++; i < shared->pieces.size(); i = next++) {
          last += maker.gather(scratch, *shared, shared->pieces[i]) ? 1 : 0;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQUAL(last.load(), 1);
    check_batch(data, *shared, 0, indices);
  });

  check::promise("an error of a piece is kept in its task, and the task still completes", [] {
    const Folder folder;
    const TestTable data(folder, {40}, kColumns);
    const std::atomic<bool> stopping{false};
    BatchMaker maker(data.table, new_pool(), {}, stopping);
    BatchMaker::Scratch scratch(maker);
    const auto first = task_of({0});
    maker.prepare(scratch, *first);
    for (Piece& piece : first->pieces) maker.gather(scratch, *first, piece);
    CHECK(truncate(data.paths[0].c_str(), 0) == 0);
    const auto task = task_of({1});
    maker.prepare(scratch, *task);
    CHECK(!maker.gather(scratch, *task, task->pieces[0]));
    CHECK(maker.gather(scratch, *task, task->pieces[1]));
    CHECK(task->failed.load());
    CHECK_THROWS(fastload::OsError, std::rethrow_exception(task->error));
    CHECK_THROWS(std::out_of_range, maker.prepare(scratch, *task_of({40})));
  });

  check::promise("once stopping, pieces are counted and not gathered", [] {
    const Folder folder;
    const TestTable data(folder, {40}, kColumns);
    std::atomic<bool> stopping{false};
    BatchMaker maker(data.table, new_pool(), {}, stopping);
    BatchMaker::Scratch scratch(maker);
    const auto task = task_of({7});
    maker.prepare(scratch, *task);
    std::fill_n(task->slots[0].data(), 300, std::byte{1});
    stopping = true;
    CHECK(!maker.gather(scratch, *task, task->pieces[0]));
    CHECK(maker.gather(scratch, *task, task->pieces[1]));
    CHECK(std::all_of(task->slots[0].data(), task->slots[0].data() + 300,
                      [](std::byte b) { return b == std::byte{1}; }));
  });

  check::promise("a maker announces its batches to the pool, and takes that back at the end", [] {
    const Folder folder;
    const TestTable data(folder, {5000}, {{.row_bytes = 4096}});
    const auto pool = new_pool();
    const std::atomic<bool> stopping{false};
    const auto make = [&](std::size_t samples) {
      BatchMaker maker(data.table, pool, {0, 2}, stopping);
      BatchMaker::Scratch scratch(maker);
      const auto task = task_of(Indices(samples, 3));
      maker.prepare(scratch, *task);
      return pool->stats().used_bytes + pool->stats().free_bytes;
    };
    const std::size_t large = make(1000);
    CHECK(large >= 6 * 1000 * 4096);               // depth 2, and 4 delivered ones
    CHECK_EQUAL(pool->stats().free_bytes, large);  // kept for the next epoch
    make(10);
    CHECK(pool->stats().free_bytes < large);  // that epoch needed less
    CHECK_EQUAL(pool->stats().used_bytes, 0);
  });
}
