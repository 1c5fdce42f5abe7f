// Describes a batch that is late, for error messages.
#pragma once

#include <string>

#include "engine/batch_task.h"
#include "storage/table.h"

namespace fastload {

// What is being done for a task that is not done, and from which files:
// "gathering, 3 of 12 pieces done; from a.npy". Thread-safe while other threads make the task;
// REQUIRES: it is not recycled meanwhile.
std::string describe_progress(const Table& table, const BatchTask& task);

}  // namespace fastload
