// Leaving the interpreter while threads are inside the core.
//
// A daemon thread that wants the GIL back from a dead interpreter is ended by Python, through C++
// frames that cannot be unwound, and takes the process down. So whoever works without the GIL is
// counted, and an atexit hook stops every live engine and waits, within bounds, until nobody does
// and daemon threads have met the end.
//
// A worker may be inside a read that never returns (NOTE [Stalled reads], engine.h). Its engine,
// and the Python objects whose memory it reads, are then kept here, and the worker is joined when
// the read has returned. What is still there when the process ends is leaked: nothing that such a
// thread may touch is destroyed before.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

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

// How often a wait lets signal handlers run: short enough for Ctrl-C to feel immediate, and long
// enough that waking up costs nothing.
inline constexpr auto kSlice = std::chrono::milliseconds(50);

// Calls wait_until(deadline) without the GIL until it returns true. After each call that returns
// false, signal handlers run and check() is called; what they throw ends the wait. REQUIRES: the
// GIL.
template <class WaitUntil, class Check>
void wait_in_slices(const WaitUntil& wait_until, const Check& check) {
  for (;;) {
    {
      const Unlocked unlocked;
      if (wait_until(std::chrono::steady_clock::now() + kSlice)) return;
    }
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    check();
  }
}

// The engine is stopped when the interpreter exits, until it is forgotten.
void stop_at_exit(Engine* engine);
void forget_at_exit(Engine* engine);

// Owns an engine whose workers did not end in time, and what they read, until they have ended.
// REQUIRES: the GIL.
void keep_stalled(std::unique_ptr<Engine> engine, std::vector<pybind11::object> owners);
// Frees those that have ended meanwhile; waits for none. REQUIRES: the GIL.
void free_ended();

}  // namespace fastload::bindings
