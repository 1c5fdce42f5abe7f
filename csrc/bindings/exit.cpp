#include "bindings/exit.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "bindings/bindings.h"

namespace fastload::bindings {
namespace {

// How long interpreter exit waits for threads that work without the GIL. Balances a batch that
// takes long against an exit that hangs.
constexpr auto kPatience = std::chrono::seconds(2);
// How long exit then waits for daemon threads to reach a StoppedError. Between two batches they are
// inside torch, which ends the process when it wants the GIL back from a dead interpreter. Balances
// this against the time that exit takes.
constexpr auto kGrace = std::chrono::milliseconds(200);

struct Stalled {
  std::vector<py::object> owners;  // destroyed after the engine
  std::unique_ptr<Engine> engine;
};

class ExitGate {
 public:
  void add(Engine* engine) {
    MutexLock lock(mutex_);
    engines_.insert(engine);
    used_ = true;
  }
  void remove(Engine* engine) {
    MutexLock lock(mutex_);
    engines_.erase(engine);
  }
  void close() {
    exiting.store(true);
    bool used = false;
    {
      MutexLock lock(mutex_);
      used = used_;
      for (Engine* engine : engines_) engine->request_stop();
    }
    const bool others =
        used && py::module_::import("threading").attr("active_count")().cast<int>() > 1;
    const py::gil_scoped_release unlocked;
    const auto patience = std::chrono::steady_clock::now() + kPatience;
    while (inside.load() > 0 && std::chrono::steady_clock::now() < patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (others) std::this_thread::sleep_for(kGrace);
  }

  void keep(Stalled stalled) {
    MutexLock lock(mutex_);
    stalled_.push_back(std::move(stalled));
  }
  // Takes out the engines whose workers have ended.
  std::vector<Stalled> take_ended() {
    MutexLock lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    const auto ended = std::stable_partition(
        stalled_.begin(), stalled_.end(),
        [&](const Stalled& stalled) { return !stalled.engine->stop_until(now); });
    std::vector<Stalled> taken(std::make_move_iterator(ended),
                               std::make_move_iterator(stalled_.end()));
    stalled_.erase(ended, stalled_.end());
    return taken;
  }

  const std::uint64_t generation = fork_generation();
  std::atomic<int> inside{0};  // threads without the GIL
  std::atomic<bool> exiting{false};

 private:
  Mutex mutex_;
  std::set<Engine*> engines_ FL_GUARDED_BY(mutex_);
  std::vector<Stalled> stalled_ FL_GUARDED_BY(mutex_);
  bool used_ FL_GUARDED_BY(mutex_) = false;
};

// Returns the gate of this process: a forked child starts with an empty one. Leaked, since engines
// may die after static objects. Thread-safe without the GIL, too.
ExitGate& gate() {
  static std::atomic<ExitGate*> current{new ExitGate()};
  ExitGate* found = current.load(std::memory_order_acquire);
  while (found->generation != fork_generation()) {
    auto fresh = std::make_unique<ExitGate>();
    if (current.compare_exchange_strong(found, fresh.get())) return *fresh.release();
  }
  return *found;
}

}  // namespace

Unlocked::Unlocked() {
  if (gate().exiting.load()) return;
  ++gate().inside;
  released_.emplace();
}

Unlocked::~Unlocked() {
  if (!released_) return;
  released_.reset();  // waits for the GIL
  --gate().inside;
}

// PyGILState_Check() is not enough: it also returns true where there is no interpreter, or several.
bool has_gil() {
  PyThreadState* const attached = py::detail::get_thread_state_unchecked();
  return attached != nullptr && attached == PyGILState_GetThisThreadState();
}

void check_not_exiting() {
  if (gate().exiting.load()) throw StoppedError("Python is exiting");
}
void stop_at_exit(Engine* engine) { gate().add(engine); }
void forget_at_exit(Engine* engine) { gate().remove(engine); }

void keep_stalled(std::unique_ptr<Engine> engine, std::vector<py::object> owners) {
  gate().keep({std::move(owners), std::move(engine)});
}

void free_ended() {
  std::vector<Stalled> ended = gate().take_ended();  // the owners are freed with the GIL
  if (ended.empty()) return;
  const Unlocked unlocked;
  for (Stalled& stalled : ended) stalled.engine.reset();
}

void register_exit(py::module_& module) {
  module.def(
      "is_exiting", [] { return gate().exiting.load(); }, "Whether Python has started to exit.");
  py::module_::import("atexit").attr("register")(py::cpp_function([] { gate().close(); }));
}

}  // namespace fastload::bindings
