// The books of the fake driver.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "device/driver.h"
#include "sight.h"

namespace fake_cuda {

using fastload::CudaResult;

inline constexpr CudaResult kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialised = 3,
                            kInvalidDevice = 101, kInvalidContext = 201, kInvalidHandle = 400,
                            kNotFound = 500, kNotReady = 600, kInvalidPtx = 218,
                            kAlreadyRegistered = 712, kNotRegistered = 713,
                            kCaptureUnsupported = 900, kCaptureIsolation = 905,
                            kCapturedEvent = 907;

// That a stream has come to a certain place.
struct Completion {
  bool done = false;
  std::int64_t time_ns = 0;  // when
};

struct Range {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  bool overlaps(const std::byte* other, std::size_t count) const {
    return data < other + count && other < data + bytes;
  }
};

class Stream;
using Work = std::function<void(Stream&)>;

struct Operation {
  std::shared_ptr<Completion> awaited;    // before the work
  Work work;                              // seen by ThreadSanitizer
  std::shared_ptr<Completion> completed;  // by the end of it
  Range reads, writes;
  bool dropped = false;  // since an error that sticks
};

struct Context {
  int ordinal = 0;
  int retained = 0;
  Stream* legacy = nullptr;
};

// The state's mutex guards all but sleep().
class Stream {
 public:
  Stream(Context& owner, int number) : context(owner), number_(number) {}
  void start();
  // A random time.
  void sleep();

  Context& context;
  bool held = false;
  bool at_work = false;
  bool ends = false;  // once the queue is empty
  int capture = 0;
  std::deque<std::unique_ptr<Operation>> queue;  // the one in front is under way
  std::condition_variable woken;

 private:
  void loop();

  const int number_;
  std::uint64_t sleeps_ = 0;
};

struct Event {
  std::shared_ptr<Completion> latest;
  bool is_timed = true;
  bool captured = false;
};

struct Fault {
  int nth, code, times;
};

// One of the driver's.
struct Function {
  std::int64_t calls = 0;
  std::int64_t delay_us = 0;  // of each call
  std::vector<Fault> faults;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;  // a completion, a sticky error
  pid_t pid = 0;                    // that initialised the driver; 0: nobody
  int device_count = 1;
  int version = 13000;
  std::uint64_t seed = 0;
  int largest_delay_us = 0;
  bool all_held = false;
  std::int64_t ns_per_byte = -1;  // of copies, as long as time stands still otherwise; -1: it runs
  std::int64_t virtual_ns = 0;
  int sticky = 0;
  std::map<std::string, Function, std::less<>> functions;
  std::map<int, std::unique_ptr<Context>> contexts;
  std::set<Stream*> streams;  // without the legacy ones
  std::set<Event*> events;
  std::map<const std::byte*, std::size_t> registered, host_allocations;
  std::deque<std::string> modules;  // their texts
  int stream_count = 0;
  std::int64_t pageable = 0, misuses = 0, launches = 0, slow_waits = 0;
  std::string misuse;

  // Those below REQUIRE the mutex.
  CudaResult misused(std::string what, CudaResult result);
  std::int64_t now_ns() const;
  Function& function(std::string_view name);
  // Nothing works any more, and no memory is in use when this returns. Inside Unseen.
  void stick(CudaResult code, std::unique_lock<std::mutex>& lock);
  bool pinned(const void* data, std::size_t bytes) const;
  bool busy(const void* data, std::size_t bytes) const;
  bool capturing() const;
  void invalidate_captures();
  Context& context_of(int ordinal);
  Stream* new_stream(Context& context);
  // The stream of a handle; nullptr if there is none.
  Stream* find(const void* handle, Context* current);
  void for_each_stream(const std::function<void(Stream&)>& body) const;
};

// Never destroyed: streams run until the process ends.
State& state();

bool is_sticky(CudaResult code);

// Outside of Unseen, without the mutex.
void push(Stream& stream, std::unique_ptr<Operation> operation);
// The same, and waits. Returns success or the sticky error.
CudaResult wait_for(const std::shared_ptr<Completion>& completion);
CudaResult drain(Stream& stream);
// In two halves.
Work copying(std::byte* to, const std::byte* from, std::size_t bytes);

// What a host thread has current.
struct ThreadState {
  const Stream* stream = nullptr;  // whose thread it is
  std::vector<Context*> contexts;
  int capture_mode = 0;  // global
  Context* current() const { return contexts.empty() ? nullptr : contexts.back(); }
};
ThreadState& this_thread();

}  // namespace fake_cuda
