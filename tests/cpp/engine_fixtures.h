// A running engine and what its batches must be.
#pragma once

#include <unistd.h>

#include <chrono>
#include <memory>
#include <utility>

#include "batch/host_memory.h"
#include "engine/engine.h"
#include "fixtures.h"

namespace fixtures {

using fastload::BatchTask;
using fastload::Engine;
using fastload::EpochPlan;
using fastload::EpochSpec;
using fastload::IndexSource;
using fastload::PlanOrder;
using fastload::PushedOrder;
using fastload::SlotPool;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// What is promised within 0.2 s, measured by `attempt`, is so in one of several attempts: other
// processes hit some of them, what is slow by itself is slow in all.
template <class Attempt>
void check_soon(Attempt&& attempt) {
  constexpr milliseconds kSoon{check::kSanitized ? 2000 : 200};
  for (int left = 20; attempt() >= kSoon; --left) CHECK(left > 1);
}

inline std::shared_ptr<SlotPool> new_pool() {
  return std::make_shared<SlotPool>(std::make_shared<fastload::HostMemory>());
}

inline EpochSpec shuffled(std::int64_t rows, std::int64_t batch, std::uint64_t seed = 1) {
  EpochSpec spec;
  spec.rows = rows;
  spec.batch = batch;
  spec.seed = seed;
  return spec;
}

inline std::shared_ptr<IndexSource> plan_order(const EpochSpec& spec) {
  return std::make_shared<PlanOrder>(EpochPlan(spec));
}

// The next batch, however long it takes; nullptr at the end.
inline std::unique_ptr<BatchTask> next_batch(Engine& engine) {
  std::unique_ptr<BatchTask> task;
  Engine::Result result = engine.try_next(task);
  while (result == Engine::Result::kPending) {
    result = engine.next(Clock::now() + milliseconds(50), task);
  }
  CHECK((result == Engine::Result::kBatch) == (task != nullptr));
  return task;
}

inline void check_batch(const TestTable& data, const BatchTask& task, std::int64_t number,
                        const Indices& indices) {
  CHECK_EQUAL(task.number, number);
  CHECK(task.indices == indices);
  CHECK_EQUAL(task.slots.size(), data.table->columns().size());
  for (std::size_t c = 0; c < task.slots.size(); ++c) {
    CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(task.slots[c].data()) % 256, 0);
    data.check_samples(c, indices, task.slots[c].data());
  }
}

// Takes every batch of the plan and compares it. `from`: the first that is still to come.
inline void check_epoch(Engine& engine, const TestTable& data, const EpochSpec& spec,
                        std::int64_t from = 0) {
  const EpochPlan plan(spec);
  Indices indices;
  for (std::int64_t k = from; k < plan.batch_count(); ++k) {
    const auto task = next_batch(engine);
    CHECK(task != nullptr);
    plan.indices(k, indices);
    check_batch(data, *task, k, indices);
  }
  for (int i = 0; i < 3; ++i) CHECK(next_batch(engine) == nullptr);
}

}  // namespace fixtures
