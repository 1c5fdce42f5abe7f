// The scratch of one thread that gathers. Private to engine/.
#pragma once

#include "batch/block_check.h"
#include "batch/gather.h"
#include "engine/engine.h"

namespace fastload {

struct Engine::Worker {
  Worker(const Table& table, const std::atomic<bool>& stopping)
      : gatherer(table), check(table, &stopping), monitor(Readahead::monitor()) {}

  Gatherer gatherer;
  BlockCheck check;
  Readahead::Monitor monitor;
};

}  // namespace fastload
