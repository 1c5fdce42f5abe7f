#include "engine/load_stats.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "engine_fixtures.h"

using namespace fastload;
using namespace fixtures;

namespace {

// The wait that the histogram stands for, by sorting.
std::int64_t quantile(std::vector<std::int64_t> waits, double q) {
  std::sort(waits.begin(), waits.end());
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(waits.size())));
  return waits[std::max<std::size_t>(rank, 1) - 1];
}

}  // namespace

int main() {
  alarm(240);

  check::promise("quantiles are those of the sorted waits, to within a sixteenth", [] {
    CHECK_EQUAL(WaitHistogram().quantile_ns(0.5), 0);
    std::vector<std::int64_t> waits{0, 7, 8, 15, 16, 17, 1'000, 1'000'000, INT64_MAX};
    for (int i = 0; i < 1000; ++i) waits.push_back(static_cast<std::int64_t>(std::exp(i / 30.0)));
    WaitHistogram histogram;
    for (std::size_t n = 0; n < waits.size(); ++n) {
      histogram.add(waits[n]);
      const std::vector<std::int64_t> seen(waits.begin(),
                                           waits.begin() + static_cast<std::ptrdiff_t>(n) + 1);
      for (double q : {0.0, 0.01, 0.5, 0.99, 1.0}) {
        const auto want = static_cast<double>(quantile(seen, q));
        const auto got = static_cast<double>(histogram.quantile_ns(q));
        CHECK(std::abs(got - want) <= want / 16);
      }
    }
    histogram.add(-5);
    CHECK_EQUAL(histogram.quantile_ns(0), 0);
  });

  check::promise("an engine counts each batch and its wait once, however the wait was cut", [] {
    const Folder folder;
    const TestTable data(folder, {50}, {{.row_bytes = 8}});
    const auto order = std::make_shared<PushedOrder>();
    const auto stats = std::make_shared<LoadStats>();
    EngineOptions options{1, 4};
    options.stats = stats;
    Engine engine(data.table, new_pool(), order, options);
    std::unique_ptr<BatchTask> task;
    for (int slice = 0; slice < 3; ++slice) {
      const auto end = Clock::now() + milliseconds(10);
      CHECK(engine.next(end, task) == Engine::Result::kPending);
    }
    CHECK(stats->read().consumer_wait_ns >= 30'000'000);
    CHECK_EQUAL(stats->read().wait_p50_ns, 0);  // nothing has come yet
    order->push({1, 2, 3});
    task = next_batch(engine);
    CHECK(stats->read().wait_p50_ns >= 28'000'000);
    order->push({60});  // there is no such sample
    CHECK_THROWS(std::out_of_range, next_batch(engine));
    for (int k = 0; k < 2; ++k) {
      order->push({4});
      while (stats->read().ready < 1) std::this_thread::sleep_for(milliseconds(1));
      CHECK(engine.try_next(task) == Engine::Result::kBatch);
    }
    order->finish();
    CHECK(next_batch(engine) == nullptr);
    const LoadFigures figures = stats->read();
    CHECK_EQUAL(figures.batches, 3);
    CHECK_EQUAL(figures.samples, 5);
    CHECK_EQUAL(figures.bytes, 40);
    CHECK_EQUAL(figures.wait_p50_ns, 0);  // of 3 waits, 2 were none
    CHECK(figures.wait_p99_ns >= 28'000'000);
    CHECK(figures.worker_wait_ns > 0);
  });

  check::promise("samples that a consumer leaves out of a counted batch are missing", [] {
    LoadStats stats;
    stats.count_batch(10, 100, 2, false);
    stats.count_missing(3);
    const LoadFigures figures = stats.read();
    CHECK_EQUAL(figures.samples, 7);
    CHECK_EQUAL(figures.missing, 5);
    CHECK_EQUAL(figures.batches, 1);
  });

  check::promise("several engines count together, while others read; nothing stays ready", [] {
    const Folder folder;
    const TestTable data(folder, {500}, {{.row_bytes = 100}});
    const auto stats = std::make_shared<LoadStats>();
    std::atomic<bool> ends{false};
    std::thread reader([&] {
      std::int64_t before = 0;
      while (!ends.load()) {
        const LoadFigures figures = stats->read();
        CHECK(figures.batches >= before);
        CHECK(figures.ready <= 3 * 4);
        before = figures.batches;
      }
    });
    std::vector<std::thread> consumers;
    for (int c = 0; c < 3; ++c) {
      consumers.emplace_back([&] {
        EngineOptions options{2, 4};
        options.stats = stats;
        options.counts_waits = false;
        Engine engine(data.table, new_pool(), plan_order(shuffled(500, 5)), options);
        for (int k = 0; k < 60; ++k) next_batch(engine);  // and 40 are left
      });
    }
    for (std::thread& consumer : consumers) consumer.join();
    ends.store(true);
    reader.join();
    const LoadFigures figures = stats->read();
    CHECK_EQUAL(figures.batches, 180);
    CHECK_EQUAL(figures.samples, 900);
    CHECK_EQUAL(figures.ready, 0);
    CHECK_EQUAL(figures.consumer_wait_ns, 0);
    CHECK_EQUAL(figures.wait_p99_ns, 0);
  });
}
