// Threads of ours leave signals to the user's.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace fastload {

// While it lives, new threads start with all signals blocked but those that the thread itself
// causes: SIGINT and the like belong to the user's threads.
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
