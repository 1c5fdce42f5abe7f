// The scratch of one thread that gathers. Private to engine/.
#pragma once

#include "batch/gather.h"
#include "engine/engine.h"

namespace fastload {

struct Engine::Worker {
  explicit Worker(const Table& table) : gatherer(table), monitor(Readahead::monitor()) {}

  Gatherer gatherer;
  Readahead::Monitor monitor;
};

}  // namespace fastload
