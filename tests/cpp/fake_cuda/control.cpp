// The strings by which tests pull the fake driver.
#include <cstring>

#include "entry.h"
#include "fake_cuda.h"

using namespace fake_cuda;

namespace {

// The books, locked and unseen.
class Books {
 public:
  State* operator->() const { return &state(); }

 private:
  const Unseen unseen_;
  const std::lock_guard<std::mutex> lock_{state().mutex};
};

Stream* stream_of(void* handle) {
  const Books books;
  return books->find(handle, &books->context_of(0));
}

void give(void* handle, Work work, Range reads = {}, Range writes = {}) {
  std::unique_ptr<Operation> operation;
  {
    const Unseen unseen;
    operation = std::make_unique<Operation>();
    operation->work = std::move(work);
    operation->reads = reads;
    operation->writes = writes;
  }
  push(*stream_of(handle), std::move(operation));
}

}  // namespace

extern "C" {

void fake_cuda_seed(uint64_t seed, int largest_delay_us) {
  const Books books;
  books->seed = seed;
  books->largest_delay_us = largest_delay_us;
}

void fake_cuda_set_devices(int count) { Books()->device_count = count; }

void fake_cuda_set_version(int version) { Books()->version = version; }

void fake_cuda_fail(const char* function, int nth, int code, int times) {
  Books()->function(function).faults.push_back({nth, code, times});
}

void fake_cuda_delay(const char* function, int64_t us) {
  Books()->function(function).delay_us = us;
}

void fake_cuda_stick(int code) {
  const Unseen unseen;
  std::unique_lock lock(state().mutex);
  state().stick(code, lock);
}

void fake_cuda_stop_clock(int64_t ns_per_byte) { Books()->ns_per_byte = ns_per_byte; }

void fake_cuda_pass(int64_t ns) { Books()->virtual_ns += ns; }

void fake_cuda_forgive() {
  const Books books;
  books->sticky = 0;
  for (auto& [name, function] : books->functions) {
    function.faults.clear();
    function.delay_us = 0;
  }
}

void fake_cuda_capture(void* stream, int status) { stream_of(stream)->capture = status; }

int fake_cuda_capture_status(void* stream) { return stream_of(stream)->capture; }

int64_t fake_cuda_calls(const char* function) { return Books()->function(function).calls; }

int64_t fake_cuda_count(const char* what) {
  const Books books;
  const std::string name(what);
  if (name == "contexts") {
    int64_t retained = 0;
    for (const auto& [ordinal, context] : books->contexts) retained += context->retained > 0;
    return retained;
  }
  const std::map<std::string, std::int64_t> counts = {
      {"streams", books->streams.size()},
      {"events", books->events.size()},
      {"registered", books->registered.size()},
      {"host_allocations", books->host_allocations.size()},
      {"modules", books->modules.size()},
      {"pageable", books->pageable},
      {"misuses", books->misuses},
      {"launches", books->launches},
      {"slow_waits", books->slow_waits},
  };
  const auto found = counts.find(name);
  return found == counts.end() ? -1 : found->second;
}

const char* fake_cuda_misuse() { return Books()->misuse.c_str(); }

void* fake_cuda_make_stream(int ordinal) {
  const Books books;
  return books->new_stream(books->context_of(ordinal));
}

void fake_cuda_destroy_stream(void* handle) {
  const Books books;
  Stream* const stream = books->find(handle, nullptr);
  if (stream == nullptr) return;
  books->streams.erase(stream);
  stream->ends = true;
  stream->woken.notify_all();
}

void fake_cuda_hold(void* handle, int held) {
  const Books books;
  Stream* const stream = books->find(handle, &books->context_of(0));
  stream->held = held != 0;
  stream->woken.notify_all();
}

void fake_cuda_hold_all(int held) {
  const Books books;
  books->all_held = held != 0;
  books->for_each_stream([&](Stream& stream) {
    stream.held = held != 0;
    stream.woken.notify_all();
  });
}

void fake_cuda_run(void* stream, void (*work)(void*), void* argument) {
  give(stream, [=](Stream&) { work(argument); });
}

void fake_cuda_copy(void* stream, void* to, const void* from, size_t bytes) {
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  give(stream, copying(target, source, bytes), {source, bytes}, {target, bytes});
}

void fake_cuda_fill(void* stream, void* to, int byte, size_t bytes) {
  give(stream,
       [=](Stream&) {
         if (bytes > 0) std::memset(to, byte, bytes);
       },
       {}, {static_cast<std::byte*>(to), bytes});
}

int fake_cuda_synchronize(void* stream) { return drain(*stream_of(stream)); }

int fake_cuda_busy(const void* data, size_t bytes) { return Books()->busy(data, bytes); }

int fake_cuda_pinned(const void* data, size_t bytes) { return Books()->pinned(data, bytes); }
}
