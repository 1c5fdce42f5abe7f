#include "entry.h"

#include <unistd.h>

#include <chrono>
#include <thread>

namespace fake_cuda {

Entry::Entry(const char* function, unsigned needs) {
  // The child's copy of the mutex may be locked.
  if (state().pid != 0 && state().pid != getpid()) {
    result_ = kNotInitialised;
    return;
  }
  lock_ = std::unique_lock(state().mutex);
  if (const auto delay_us = books().function(function).delay_us; delay_us > 0) {
    lock_.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    lock_.lock();
  }
  result_ = check(function, needs);
}

CudaResult Entry::injected(const char* function) {
  Function& called = books().function(function);
  auto& faults = called.faults;
  ++called.calls;
  CudaResult code = kSuccess;
  for (auto fault = faults.begin(); fault != faults.end();) {
    if (fault->nth > 1) {
      --fault->nth;
    } else if (fault->times != 0) {
      code = fault->code;
      if (fault->times > 0) --fault->times;
    }
    fault = fault->times == 0 ? faults.erase(fault) : std::next(fault);
  }
  if (is_sticky(code)) books().stick(code, lock_);
  return code;
}

CudaResult Entry::check(const char* function, unsigned needs) {
  if (const CudaResult code = injected(function); code != kSuccess) return code;
  if ((needs & kInitialised) != 0 && books().pid == 0) return kNotInitialised;
  if ((needs & kContext) == kContext) {
    if (books().sticky != 0) return books().sticky;
    if (this_thread().current() == nullptr) return kInvalidContext;
  }
  constexpr int kRelaxed = 2;
  if ((needs & kUnsafe) != 0 && this_thread().capture_mode != kRelaxed && books().capturing()) {
    books().invalidate_captures();
    return books().misused(std::string(function) + " during a capture", kCaptureUnsupported);
  }
  return kSuccess;
}

Stream* Entry::open(const void* handle) {
  Stream* const stream = books().find(handle, this_thread().current());
  if (stream == nullptr) {
    result_ = books().misused("an unknown stream", kInvalidHandle);
  } else if (&stream->context != this_thread().current()) {
    result_ = books().misused("a stream of another context", kInvalidHandle);
  } else if (stream->capture != 0) {
    stream->capture = 2;
    result_ = books().misused("work for a stream that is captured", kCaptureUnsupported);
  }
  return stream;
}

Event* Entry::event(const void* handle) {
  for (Event* event : books().events) {
    if (event == handle) return event;
  }
  result_ = books().misused("an unknown event", kInvalidHandle);
  return nullptr;
}

}  // namespace fake_cuda
