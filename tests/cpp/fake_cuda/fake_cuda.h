// A CUDA driver without a GPU, and the strings by which tests pull it.
//
// Every stream is a thread with a queue, every event a completion that some stream reports, device
// memory is host memory. Copies take place in two halves, with sleeps before and between them.
// ThreadSanitizer is told of the edges that CUDA promises, and of nothing else: what a stream is
// given comes after what its giver did before; what waits for an event (in a stream, or a host
// thread that waits or asks and is told "done") comes after what the event was recorded behind. So
// a missing wait is a data race in every run, whatever the timing.
//
// The functions of the driver have its names. These beside them serve C++ and ctypes alike.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FAKE_CUDA_API __attribute__((visibility("default")))

extern "C" {

// Sleeps of at most so many microseconds, drawn anew. None at first.
FAKE_CUDA_API void fake_cuda_seed(uint64_t seed, int largest_delay_us);
// One device and CUDA 13.0 at first.
FAKE_CUDA_API void fake_cuda_set_devices(int count);
FAKE_CUDA_API void fake_cuda_set_version(int version);

// The `nth` call of a driver's function from now on (1: the next) and the `times - 1` after it
// return `code`; all of them if `times` is negative. A sticky code sticks.
FAKE_CUDA_API void fake_cuda_fail(const char* function, int nth, int code, int times);
// Each call of a driver's function takes at least so long from now on; 0: no longer than it must.
FAKE_CUDA_API void fake_cuda_delay(const char* function, int64_t us);
// From now on nothing works any more. What the streams were given is dropped: when this returns no
// memory is in use, unless a stream calls it in the middle of its work.
FAKE_CUDA_API void fake_cuda_stick(int code);
// From now on the time that events take stands still, but for fake_cuda_pass() and for copies,
// which take so much; negative: it is that of a clock again, as at first.
FAKE_CUDA_API void fake_cuda_stop_clock(int64_t ns_per_byte);
FAKE_CUDA_API void fake_cuda_pass(int64_t ns);
// Neither faults, delays of functions nor a sticky error, from now on.
FAKE_CUDA_API void fake_cuda_forgive(void);

// 0: the stream is not captured, 1: it is, 2: the capture was invalidated.
FAKE_CUDA_API void fake_cuda_capture(void* stream, int status);
FAKE_CUDA_API int fake_cuda_capture_status(void* stream);

// How often a function was called.
FAKE_CUDA_API int64_t fake_cuda_calls(const char* function);
// What there is: "contexts" that somebody retains, "streams", "events", "registered" ranges,
// "host_allocations", "modules". What took place: "pageable" (asynchronous copies from memory that
// is not pinned), "misuses" (calls that a driver may answer with anything), "launches",
// "slow_waits" (waits of streams for events with timing, and queries of these).
FAKE_CUDA_API int64_t fake_cuda_count(const char* what);
// The last misuse, in words.
FAKE_CUDA_API const char* fake_cuda_misuse(void);

// A stream of somebody else. It needs no current context.
FAKE_CUDA_API void* fake_cuda_make_stream(int ordinal);
FAKE_CUDA_API void fake_cuda_destroy_stream(void* stream);
// While it is held, a stream begins nothing.
FAKE_CUDA_API void fake_cuda_hold(void* stream, int held);
// The same for all streams, also those to come.
FAKE_CUDA_API void fake_cuda_hold_all(int held);
// Gives a stream work, as a kernel of somebody else. nullptr: the default stream of device 0.
FAKE_CUDA_API void fake_cuda_run(void* stream, void (*work)(void*), void* argument);
FAKE_CUDA_API void fake_cuda_copy(void* stream, void* to, const void* from, size_t bytes);
FAKE_CUDA_API void fake_cuda_fill(void* stream, void* to, int byte, size_t bytes);
// Waits for a stream; returns what cuStreamSynchronize() would.
FAKE_CUDA_API int fake_cuda_synchronize(void* stream);
// Whether a copy from or to the memory has not been made yet.
FAKE_CUDA_API int fake_cuda_busy(const void* data, size_t bytes);
// Whether the memory is pinned.
FAKE_CUDA_API int fake_cuda_pinned(const void* data, size_t bytes);
}
