#include "state.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/hash.h"
#include "base/signals.h"

namespace fake_cuda {

State& state() {
  static State* const only = new State();
  return *only;
}

ThreadState& this_thread() {
  thread_local ThreadState only;
  return only;
}

bool is_sticky(CudaResult code) {
  constexpr CudaResult kSticky[] = {214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};
  return std::find(std::begin(kSticky), std::end(kSticky), code) != std::end(kSticky);
}

CudaResult State::misused(std::string what, CudaResult result) {
  ++misuses;
  misuse = std::move(what);
  return result;
}

Function& State::function(std::string_view name) {
  const auto found = functions.find(name);
  return found == functions.end() ? functions[std::string(name)] : found->second;
}

std::int64_t State::now_ns() const {
  if (ns_per_byte >= 0) return virtual_ns;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void State::stick(CudaResult code, std::unique_lock<std::mutex>& lock) {
  bool at_work = true;
  while (at_work) {
    at_work = false;
    for_each_stream([&](Stream& stream) {
      for (const auto& operation : stream.queue) operation->dropped = true;
      at_work = at_work || (stream.at_work && &stream != this_thread().stream);
    });
    changed.notify_all();
    if (at_work) changed.wait(lock);
  }
  sticky = code;
  const Seen seen;
  for_each_stream([](Stream& stream) { acquire(&stream); });
  release(&sticky);
}

bool State::pinned(const void* data, std::size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(data);
  for (const auto* ranges : {&registered, &host_allocations}) {
    auto after = ranges->upper_bound(first);
    if (after == ranges->begin()) continue;
    --after;
    if (first + bytes <= after->first + after->second) return true;
  }
  return false;
}

bool State::busy(const void* data, std::size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(data);
  bool found = false;
  for_each_stream([&](const Stream& stream) {
    for (const auto& operation : stream.queue) {
      found = found || operation->reads.overlaps(first, bytes) ||
              operation->writes.overlaps(first, bytes);
    }
  });
  return found;
}

bool State::capturing() const {
  bool found = false;
  for_each_stream([&](const Stream& stream) { found = found || stream.capture == 1; });
  return found;
}

void State::invalidate_captures() {
  for_each_stream([](Stream& stream) {
    if (stream.capture == 1) stream.capture = 2;
  });
}

Context& State::context_of(int ordinal) {
  auto& context = contexts[ordinal];
  if (context == nullptr) {
    context = std::make_unique<Context>();
    context->ordinal = ordinal;
    context->legacy = new_stream(*context);
    streams.erase(context->legacy);
  }
  return *context;
}

Stream* State::new_stream(Context& context) {
  auto* stream = new Stream(context, ++stream_count);
  stream->held = all_held;
  streams.insert(stream);
  stream->start();
  return stream;
}

Stream* State::find(const void* handle, Context* current) {
  if (handle == nullptr) return current == nullptr ? nullptr : current->legacy;
  for (Stream* stream : streams) {
    if (stream == handle) return stream;
  }
  return nullptr;
}

void State::for_each_stream(const std::function<void(Stream&)>& body) const {
  for (Stream* stream : streams) body(*stream);
  for (const auto& [ordinal, context] : contexts) body(*context->legacy);
}

void Stream::start() {
  const fastload::SignalsBlocked blocked;
  std::thread([this] { loop(); }).detach();
}

void Stream::sleep() {
  std::uint64_t drawn = 0, range = 0;
  {
    const Unseen unseen;
    const std::lock_guard lock(state().mutex);
    range = static_cast<std::uint64_t>(state().largest_delay_us) + 1;
    drawn = fastload::mix(state().seed ^
                          fastload::mix(static_cast<std::uint64_t>(number_) << 32 | ++sleeps_));
  }
  if (range > 1) std::this_thread::sleep_for(std::chrono::microseconds(drawn % range));
}

void Stream::loop() {
  this_thread().stream = this;
  for (;;) {
    Operation* operation = nullptr;
    bool dropped = false;
    {
      const Unseen unseen;
      std::unique_lock lock(state().mutex);
      woken.wait(lock, [&] { return (!queue.empty() && !held) || (queue.empty() && ends); });
      if (queue.empty()) break;
      operation = queue.front().get();
      state().changed.wait(lock, [&] {
        return operation->dropped || operation->awaited == nullptr || operation->awaited->done;
      });
      dropped = operation->dropped;
      at_work = !dropped;
    }
    acquire(operation);
    if (operation->awaited && !dropped) acquire(operation->awaited.get());
    if (operation->work && !dropped) {
      sleep();
      operation->work(*this);
    }
    if (operation->completed) release(operation->completed.get());
    release(this);
    const Unseen unseen;
    const std::lock_guard lock(state().mutex);
    at_work = false;
    if (operation->completed) {
      operation->completed->time_ns = state().now_ns();
      operation->completed->done = true;
    }
    queue.pop_front();
    state().changed.notify_all();
  }
  const Unseen unseen;
  delete this;
}

void push(Stream& stream, std::unique_ptr<Operation> operation) {
  release(operation.get());
  const Unseen unseen;
  const std::lock_guard lock(state().mutex);
  operation->dropped = state().sticky != 0;
  stream.queue.push_back(std::move(operation));
  if (stream.queue.size() == 1) stream.woken.notify_all();  // else it is at work
}

CudaResult wait_for(const std::shared_ptr<Completion>& completion) {
  CudaResult result = kSuccess;
  {
    const Unseen unseen;
    std::unique_lock lock(state().mutex);
    state().changed.wait(lock, [&] { return state().sticky != 0 || completion->done; });
    result = state().sticky;
  }
  acquire(result == kSuccess ? static_cast<void*>(completion.get()) : &state().sticky);
  return result;
}

CudaResult drain(Stream& stream) {
  std::shared_ptr<Completion> end;
  std::unique_ptr<Operation> last;
  {
    const Unseen unseen;
    last = std::make_unique<Operation>();
    end = last->completed = std::make_shared<Completion>();
  }
  push(stream, std::move(last));
  const CudaResult result = wait_for(end);
  const Unseen unseen;
  end.reset();
  return result;
}

Work copying(std::byte* to, const std::byte* from, std::size_t bytes) {
  return [=](Stream& stream) {
    if (bytes == 0) return;
    const std::size_t half = bytes / 2;
    std::memcpy(to, from, half);
    stream.sleep();
    std::memcpy(to + half, from + half, bytes - half);
    const Unseen unseen;
    const std::lock_guard lock(state().mutex);
    if (state().ns_per_byte < 0) return;
    state().virtual_ns += state().ns_per_byte * static_cast<std::int64_t>(bytes);
  };
}

}  // namespace fake_cuda
