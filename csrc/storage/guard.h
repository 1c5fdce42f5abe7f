// Reads mapped files, whose pages may become unreadable, without ending the process.
//
// NOTE [Guard]. When a mapped file shrinks, or its disk fails, touching the page raises SIGBUS,
// which kills the process. Copies from mappings therefore run inside guarded(): a handler jumps
// back out when the signal is synchronous and its address lies in one of the ranges being read by
// this thread. All other SIGBUS go to the handler that was installed before (Python's faulthandler,
// a torch worker), and to the default action if that handler returns and the fault repeats.
#pragma once

#include <setjmp.h>

#include <cstddef>
#include <span>

namespace fastload {

struct ByteRange {
  const std::byte* begin;
  const std::byte* end;
};

namespace guard_internal {

struct Frame {
  sigjmp_buf jump;
  const ByteRange* ranges;
  std::size_t range_count;
  const std::byte* fault;
};

// Sets the frame of this thread to which the handler jumps; nullptr: none.
void set_frame(Frame* frame);
// Installs our handler if another one is installed, such as by faulthandler.enable(). Thread-safe.
void ensure_installed();

#if defined(FASTLOAD_SANITIZE)
inline constexpr int kSaveMask = 1;  // ThreadSanitizer blocks signals while it runs the handler
#else
inline constexpr int kSaveMask =
    0;  // SA_NODEFER: the handler never changes the mask; 20 times cheaper
#endif

}  // namespace guard_internal

// Runs copy(). Returns nullptr, or the address in `ranges` whose page could not be read; then
// copy() was left in the middle, so it must own nothing that has a destructor. Thread-safe; not
// re-entrant.
template <class Copy>
const std::byte* guarded(std::span<const ByteRange> ranges, Copy&& copy) {
  guard_internal::ensure_installed();
  guard_internal::Frame frame{};
  frame.ranges = ranges.data();
  frame.range_count = ranges.size();
  if (sigsetjmp(frame.jump, guard_internal::kSaveMask) != 0) return frame.fault;
  guard_internal::set_frame(&frame);
  copy();
  guard_internal::set_frame(nullptr);
  return nullptr;
}

}  // namespace fastload
