// Leaving the interpreter while threads are inside the core.
//
// A daemon thread that wants the GIL back from a dead interpreter is ended by Python, through C++
// frames that cannot be unwound, and takes the process down. So whoever works without the GIL is
// counted, and an atexit hook stops every live engine and waits, within bounds, until nobody does
// and daemon threads have met the end.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "engine/engine.h"

namespace fastload::bindings {

// Releases the GIL for its lifetime; once the interpreter is exiting it keeps it instead.
class Unlocked {
 public:
  Unlocked();
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

// Throws StoppedError once the interpreter is exiting.
void check_not_exiting();

// The engine is stopped when the interpreter exits, until it is forgotten.
void stop_at_exit(Engine* engine);
void forget_at_exit(Engine* engine);

}  // namespace fastload::bindings
