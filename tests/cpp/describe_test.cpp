// What an engine says about a batch that is late.
#include <atomic>
#include <string>
#include <thread>

#include "engine_fixtures.h"

using namespace fastload;
using namespace fixtures;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

int main() {
  alarm(240);

  check::promise("a batch without indices waits for them", [] {
    const Folder folder;
    const TestTable data(folder, {30}, {{.row_bytes = 8}});
    const auto order = std::make_shared<PushedOrder>();
    Engine engine(data.table, new_pool(), order, {1, 2});
    CHECK(engine.describe_due() == "waiting for indices");
    order->push({7});
    while (engine.stats().ready < 1) std::this_thread::sleep_for(milliseconds(1));
    CHECK(engine.describe_due() == "ready");
  });

  check::promise("what is gathered is told in pieces, with the files that are left", [] {
    const Folder folder;
    // One piece of each field would be 4 MiB; the fields in files come first.
    const TestTable data(folder, {2, 2, 2, 2, 2},
                         {{.row_bytes = 3 << 20}, {.row_bytes = 1, .in_memory = true}});
    Engine engine(data.table, new_pool(), plan_order(shuffled(10, 10)), {0, 2});
    CHECK(engine.describe_due() == "not started");
    std::unique_ptr<BatchTask> task;
    std::string seen;
    while (engine.next(Clock::now() + std::chrono::microseconds(1), task) ==
           Engine::Result::kPending) {
      seen += engine.describe_due() + "\n";
    }
    CHECK(task != nullptr);
    CHECK(has(seen, "gathering, 0 of 11 pieces done; from '" + (folder / "column0 shard0")));
    CHECK(has(seen, " and 3 more\n"));
    CHECK(has(seen, "gathering, 10 of 11 pieces done; from memory"));
  });

  check::promise("it may be asked at any time, by any thread", [] {
    const Folder folder;
    const TestTable data(folder, {100, 300, 17}, {{.row_bytes = 300}, {.row_bytes = 8}});
    const EpochSpec spec = shuffled(417, 5);
    Engine engine(data.table, new_pool(), plan_order(spec), {3, 4});
    std::atomic<bool> stop{false};
    std::thread asking([&] {
      while (!stop.load()) CHECK(!engine.describe_due().empty());
    });
    check_epoch(engine, data, spec);
    stop.store(true);
    asking.join();
  });
}
