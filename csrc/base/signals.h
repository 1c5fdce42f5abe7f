// Keeps signals away from the threads of the engine.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace fastload {

// While it lives, threads that the calling thread starts have all signals blocked except those that
// a thread causes itself. SIGINT and the like are then handled by the user's threads. Belongs to
// one thread.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (int number : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigdelset(&blocked, number);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace fastload
