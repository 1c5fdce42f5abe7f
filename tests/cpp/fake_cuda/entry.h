// What every function of the driver does first.
#pragma once

#include <mutex>

#include "state.h"

namespace fake_cuda {

// What a call needs, or may do.
enum Needs : unsigned {
  kNothing = 0,
  kInitialised = 1,
  kContext = 2 | kInitialised,
  // It may wait, or order streams behind the back of a capture.
  kUnsafe = 4,
};

// One call of a driver's function, with the books locked and unseen. Unless result() is success it
// returns that.
class Entry {
 public:
  Entry(const char* function, unsigned needs);

  CudaResult result() const { return result_; }
  State& books() const { return state(); }
  Context& context() const { return *this_thread().current(); }
  // The stream of a handle, to which work is to be given; sets result() if there is none.
  Stream* open(const void* handle);
  // Sets result() unless it is an event.
  Event* event(const void* handle);

 private:
  // Whoever hears of an error that sticks knows that no memory is in use any more.
  struct Warned {
    Warned() { acquire(&state().sticky); }
  };

  CudaResult check(const char* function, unsigned needs);
  CudaResult injected(const char* function);

  const Warned warned_;
  const Unseen unseen_;
  std::unique_lock<std::mutex> lock_;
  CudaResult result_ = kSuccess;
};

}  // namespace fake_cuda
