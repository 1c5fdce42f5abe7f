// Engines that end early: stopped, destroyed, forked.
#include <sys/wait.h>

#include <atomic>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine_fixtures.h"

using namespace fastload;
using namespace fixtures;

namespace {

const std::vector<ColumnSpec> kColumns{{.row_bytes = 3000}, {.row_bytes = 8}};

// An order whose batches take their time.
class Slow final : public IndexSource {
 public:
  State state(std::int64_t) const override { return State::kReady; }
  void take(std::int64_t k, Indices& out, Indices* /*draws*/) override {
    started = true;
    std::this_thread::sleep_for(milliseconds(60));
    if (k == 1) throw std::runtime_error("late");
    out = {k % 50};
  }
  std::atomic<bool> started{false};
};

// A child runs body(); whether it ended well, and soon.
template <class Body>
void check_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0);
}

}  // namespace

int main() {
  alarm(240);

  check::promise("stop() while another thread waits in next(): StoppedError within 0.2 s", [] {
    const Folder folder;
    const TestTable data(folder, {50}, kColumns);
    for (int workers : {0, 2}) {
      for (int consumers : {1, 3}) {
        check_soon([&] {
          const auto order = std::make_shared<PushedOrder>();
          Engine engine(data.table, new_pool(), order, {workers, 2});
          std::atomic<int> stopped{0};
          std::vector<std::thread> team;
          for (int i = 0; i < consumers; ++i) {
            team.emplace_back([&] {
              std::unique_ptr<BatchTask> task;
              try {
                engine.next(Clock::now() + std::chrono::seconds(60), task);
              } catch (const StoppedError&) {
                ++stopped;
              }
            });
          }
          std::this_thread::sleep_for(milliseconds(10));
          const auto start = Clock::now();
          engine.stop();
          for (std::thread& thread : team) thread.join();
          const auto took = Clock::now() - start;
          CHECK_EQUAL(stopped.load(), consumers);
          engine.stop();
          CHECK_THROWS(StoppedError, next_batch(engine));
          order->push({1});
          return took;
        });
      }
    }
  });

  check::promise("stop() from several threads at once joins once", [] {
    const Folder folder;
    const TestTable data(folder, {50}, kColumns);
    for (int round = 0; round < 20; ++round) {
      Engine engine(data.table, new_pool(), plan_order(shuffled(50, 2)), {2, 4});
      std::vector<std::thread> team;
      for (int i = 0; i < 3; ++i) team.emplace_back([&] { engine.stop(); });
      for (std::thread& thread : team) thread.join();
    }
  });

  check::promise("destroyed at 200 random moments, with batches in the user's hands", [] {
    const Folder folder;
    const TestTable data(folder, {200, 200}, kColumns);
    const auto pool = new_pool();
    std::mt19937 random(3);
    for (int round = 0; round < 200; ++round) {
      const EpochSpec spec = shuffled(400, 1 + static_cast<std::int64_t>(random() % 40));
      const EpochPlan plan(spec);
      std::vector<std::unique_ptr<BatchTask>> kept;
      {
        const int workers = static_cast<int>(random() % 4);
        Engine engine(data.table, pool, plan_order(spec),
                      {workers, 1 + static_cast<std::int64_t>(random() % 9)});
        const auto count = random() % 6;
        for (unsigned k = 0; k < count; ++k) {
          if (auto task = next_batch(engine)) kept.push_back(std::move(task));
        }
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      }
      Indices indices;
      for (const auto& task : kept) {
        plan.indices(task->number, indices);
        check_batch(data, *task, task->number, indices);
      }
    }
    CHECK_EQUAL(pool->stats().used_bytes, 0);
  });

  check::promise("destroyed while batches in pieces are open", [] {
    const Folder folder;
    const TestTable data(folder, {6}, {{.row_bytes = 2 << 20}});
    const auto pool = new_pool();
    std::mt19937 random(4);
    for (int round = 0; round < 20; ++round) {
      Engine engine(data.table, pool, plan_order(shuffled(6, 6)), {3, 2});
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
    }
    CHECK_EQUAL(pool->stats().used_bytes, 0);
  });

  check::promise("stopped and destroyed while a batch is being begun; its late error is dropped",
                 [] {
                   const Folder folder;
                   const TestTable data(folder, {50}, kColumns);
                   for (int round = 0; round < 3; ++round) {
                     check_soon([&] {
                       const auto order = std::make_shared<Slow>();
                       Engine engine(data.table, new_pool(), order, {2, 4});
                       while (!order->started.load()) std::this_thread::yield();
                       const auto start = Clock::now();
                       if (round == 0) engine.stop();
                       if (round == 1) engine.request_stop();
                       return Clock::now() - start;
                     });
                   }
                 });

  check::promise("an order that outlives its engine tells nobody", [] {
    const Folder folder;
    const TestTable data(folder, {50}, kColumns);
    const auto order = std::make_shared<PushedOrder>();
    std::atomic<bool> end{false};
    std::thread pusher([&] {
      while (!end.load()) order->push({1});
    });
    for (int round = 0; round < 30; ++round) {
      std::unique_ptr<BatchTask> task;
      Engine engine(data.table, new_pool(), std::make_shared<PushedOrder>(), {1, 2});
      Engine listener(data.table, new_pool(), order, {0, 2});
    }
    end = true;
    pusher.join();
  });

  check::promise("in a forked child the engine raises, stops silently, and new ones work", [] {
    const Folder folder;
    const TestTable data(folder, {200}, kColumns);
    const auto pool = new_pool();
    const EpochSpec spec = shuffled(200, 5);
    Engine engine(data.table, pool, plan_order(spec), {2, 4});
    auto kept = next_batch(engine);
    for (int i = 0; i < (check::kSanitized ? 3 : 20); ++i) {
      check_child([&] {
        std::unique_ptr<BatchTask> task;
        CHECK_THROWS(StoppedError, engine.try_next(task));
        engine.stop();
        engine.request_stop();
        CHECK_EQUAL(engine.stats().batches, 0);
        CHECK_THROWS(StoppedError, data.table->check_process());
        kept.reset();
#if !defined(__SANITIZE_THREAD__)  // which cannot start threads after a fork of many
        const Folder mine;
        const TestTable again(mine, {200}, kColumns);
        {
          Engine own(again.table, new_pool(), plan_order(spec), {2, 4});
          check_epoch(own, again, spec);
        }
#endif
      });
    }
    check_epoch(engine, data, spec, 1);
  });

  check::promise("signals go to the user's threads, never to a worker", [] {
    const Folder folder;
    const TestTable data(folder, {50}, kColumns);
    Engine engine(data.table, new_pool(), std::make_shared<PushedOrder>(), {2, 2});
    const std::filesystem::path tasks = "/proc/self/task";
    // A thread that starts blocks everything, and has no name yet.
    for (int workers = 0; workers != 2; std::this_thread::sleep_for(milliseconds(1))) {
      workers = 0;
      for (const auto& entry : std::filesystem::directory_iterator(tasks)) {
        std::ifstream status(entry.path() / "status");
        std::string name;
        for (std::string line; std::getline(status, line);) {
          if (line.starts_with("Name:")) name = line;
          if (!line.starts_with("SigBlk:") || name.find("fastload") == std::string::npos) continue;
          if (entry.path().filename() == std::to_string(getpid())) continue;
          const auto blocked = std::stoull(line.substr(7), nullptr, 16);
          const auto blocks = [&](int number) { return (blocked >> (number - 1) & 1) != 0; };
          CHECK(blocks(SIGINT) && blocks(SIGTERM) && blocks(SIGALRM) && blocks(SIGCHLD));
          workers += !blocks(SIGBUS) && !blocks(SIGSEGV) ? 1 : 0;
        }
      }
    }
  });
}
