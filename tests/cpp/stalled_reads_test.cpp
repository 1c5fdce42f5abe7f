// Reads that do not come back: the consumer and stop() do.
#include <sys/syscall.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "engine_fixtures.h"

using namespace fastload;
using namespace fixtures;

namespace {

std::atomic<bool> stalls{false};
std::atomic<int> reading{0};  // threads that stall
std::atomic<int> reads{0};

const std::vector<ColumnSpec> kColumns{{.row_bytes = 3000}, {.row_bytes = 8}};

void wait_for_reader() {
  while (reading.load() == 0) std::this_thread::sleep_for(milliseconds(1));
}

}  // namespace

// In place of the system's: a server that does not answer, and that no signal interrupts.
extern "C" ssize_t pread(int file, void* out, size_t size, off_t offset) {
  ++reads;
  ++reading;
  while (stalls.load()) std::this_thread::sleep_for(milliseconds(1));
  --reading;
  return syscall(SYS_pread64, file, out, size, offset);
}

int main() {
  alarm(240);

  check::promise("next() returns at its deadline, whoever reads", [] {
    const Folder folder;
    const TestTable data(folder, {50}, kColumns, Io::kPread);
    for (int workers : {0, 1, 2}) {
      const EpochSpec spec = shuffled(50, 4);
      stalls = true;
      Engine engine(data.table, new_pool(), plan_order(spec), {workers, 2});
      std::unique_ptr<BatchTask> task;
      check_soon([&] {
        const auto start = Clock::now();
        CHECK(engine.next(start + milliseconds(20), task) == Engine::Result::kPending);
        return Clock::now() - start;
      });
      stalls = false;
      check_epoch(engine, data, spec);
    }
  });

  check::promise("stop_until() returns at its deadline; later it joins, and nothing was freed", [] {
    const Folder folder;
    const auto pool = new_pool();
    for (int workers : {0, 1, 3}) {
      const TestTable data(folder, {50}, kColumns, Io::kPread);
      stalls = true;
      auto engine = std::make_unique<Engine>(data.table, pool, plan_order(shuffled(50, 4)),
                                             EngineOptions{workers, 2});
      std::unique_ptr<BatchTask> task;
      CHECK(engine->next(Clock::now() + milliseconds(5), task) == Engine::Result::kPending);
      wait_for_reader();
      check_soon([&] {
        const auto start = Clock::now();
        CHECK(!engine->stop_until(start + milliseconds(10)));
        return Clock::now() - start;
      });
      CHECK(!engine->stop_until(Clock::now()));
      CHECK_THROWS(StoppedError, next_batch(*engine));
      stalls = false;
      CHECK(engine->stop_until(Clock::now() + std::chrono::seconds(60)));
      CHECK(engine->stop_until(Clock::now()));
      engine.reset();
    }
    CHECK_EQUAL(pool->stats().used_bytes, 0);
  });

  check::promise("without workers nothing is read while no consumer waits", [] {
    const Folder folder;
    const TestTable data(folder, {50}, kColumns, Io::kPread);
    const EpochSpec spec = shuffled(50, 4);
    Engine engine(data.table, new_pool(), plan_order(spec), {0, 8});
    for (int k = 0; k < 5; ++k) {
      CHECK(next_batch(engine) != nullptr);
      const int before = reads.load();
      std::this_thread::sleep_for(milliseconds(10));
      CHECK_EQUAL(reads.load(), before);
    }
    check_epoch(engine, data, spec, 5);
  });

  check::promise("mapped files need no thread", [] {
    const Folder folder;
    const TestTable data(folder, {50}, kColumns, Io::kMmap);
    CHECK(!data.table->files().may_stall());
    const EpochSpec spec = shuffled(50, 4);
    Engine engine(data.table, new_pool(), plan_order(spec), {0, 2});
    check_epoch(engine, data, spec);
    CHECK(engine.stop_until(Clock::now()));
  });
}
