// Leaving the interpreter while threads are inside the core.
//
// A daemon thread that wants the GIL back from a dead interpreter is ended by Python, through C++
// frames that cannot be unwound, and takes the process down. So threads that work without the
// GIL are counted, and an atexit hook stops every live engine and waits, up to a limit, until there
// are none and daemon threads have reached a StoppedError.
//
// A worker may be inside a read that never returns (NOTE [Stalled reads], engine.h). Its engine,
// and the Python objects whose memory it reads, are then kept here, and the worker is joined when
// the read has returned. Engines that remain when the process ends are leaked, with all that their
// threads may use.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
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

// Whether this thread holds the GIL. On any thread, also after the interpreter has been finalized.
bool has_gil();

// Deletes without the GIL what may take long to free: pinned memory, mappings of files, engines.
// The last reference may be dropped by any thread, with or without the GIL.
struct DeleteUnlocked {
  template <class T>
  void operator()(T* object) const {
    std::optional<Unlocked> unlocked;
    if (has_gil()) unlocked.emplace();
    delete object;
  }
};

// As std::make_shared; the object is deleted by DeleteUnlocked.
template <class T, class... Arguments>
std::shared_ptr<T> make_shared_unlocked(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), DeleteUnlocked());
}

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

// Registers an engine to be stopped when the interpreter exits, and unregisters it. Thread-safe.
void stop_at_exit(Engine* engine);
void forget_at_exit(Engine* engine);

// Owns an engine whose workers did not end in time, and what they read, until they have ended.
// REQUIRES: the GIL.
void keep_stalled(std::unique_ptr<Engine> engine, std::vector<pybind11::object> owners);
// Frees the engines whose workers have ended since; does not wait. REQUIRES: the GIL.
void free_ended();

}  // namespace fastload::bindings
