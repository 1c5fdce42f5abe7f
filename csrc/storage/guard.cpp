#include "storage/guard.h"

#include <signal.h>

#include <atomic>

#include "base/mutex.h"

namespace fastload::guard_internal {
namespace {

// initial-exec: reading these in a signal handler must not allocate the thread's storage.
#define FL_SIGNAL_SAFE thread_local __attribute__((tls_model("initial-exec")))
FL_SIGNAL_SAFE Frame* volatile current_frame = nullptr;
FL_SIGNAL_SAFE volatile sig_atomic_t in_chain = 0;
FL_SIGNAL_SAFE void* volatile last_foreign = nullptr;
FL_SIGNAL_SAFE volatile sig_atomic_t foreign_repeats = 0;

// Faults at one address that the handler before ours may see before the default action ends the
// process. Balances handlers that repair a fault in several attempts against a
// process that would repeat it forever.
constexpr int kMaxRepeats = 8;

Mutex install_mutex;
// The handler that was there before ours. Written under install_mutex before ours is installed; a
// pointer, so that a handler running on another thread never sees half of it.
std::atomic<const struct sigaction*> previous{nullptr};

void default_action() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGBUS, &action, nullptr);
}

void chain(int number, siginfo_t* info, void* context) {
  const struct sigaction* old = previous.load(std::memory_order_acquire);
  const bool sent = info->si_code <= 0;  // by kill(): no instruction will repeat it
  if (!sent) {
    foreign_repeats = info->si_addr == last_foreign ? foreign_repeats + 1 : 0;
    last_foreign = info->si_addr;
  } else if (old != nullptr && old->sa_handler == SIG_IGN) {
    return;
  }
  const bool callable =
      old != nullptr && ((old->sa_flags & SA_SIGINFO) != 0 ||
                         (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN));
  // A handler that calls ours again, or returns although the fault remains, would run forever. With
  // the default action in place the faulting instruction is executed again and ends the process.
  if (in_chain != 0 || foreign_repeats > kMaxRepeats || !callable) {
    default_action();
    if (sent) raise(SIGBUS);
    return;
  }
  in_chain = 1;
  if ((old->sa_flags & SA_SIGINFO) != 0) {
    old->sa_sigaction(number, info, context);
  } else {
    old->sa_handler(number);
  }
  in_chain = 0;
}

void handle(int number, siginfo_t* info, void* context) {
  Frame* frame = current_frame;
  if (frame != nullptr && info->si_code > 0) {
    const auto* address = static_cast<const std::byte*>(info->si_addr);
    for (std::size_t i = 0; i < frame->range_count; ++i) {
      if (address < frame->ranges[i].begin || address >= frame->ranges[i].end) continue;
      current_frame = nullptr;
      frame->fault = address;
      siglongjmp(frame->jump, 1);
    }
  }
  chain(number, info, context);
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handle;
}

void install() FL_REQUIRES(install_mutex) {
  struct sigaction now = {};
  sigaction(SIGBUS, nullptr, &now);
  if (is_ours(now)) return;
  // Leaked on purpose, a few bytes for each handler that others install: a thread may be running
  // it.
  previous.store(new struct sigaction(now), std::memory_order_release);
  struct sigaction ours = {};
  ours.sa_sigaction = handle;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace

void set_frame(Frame* frame) {
  current_frame = frame;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void ensure_installed() {
  struct sigaction now = {};
  if (sigaction(SIGBUS, nullptr, &now) == 0 && is_ours(now)) return;
  const MutexLock lock(install_mutex);
  install();
}

}  // namespace fastload::guard_internal
