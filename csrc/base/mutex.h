// std::mutex and std::condition_variable with Clang's thread-safety annotations: `clang
// -Wthread-safety` reports a guarded member touched without its mutex. The macros are empty
// elsewhere.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define FL_THREAD(x) __attribute__((x))
#else
#define FL_THREAD(x)
#endif
#define FL_GUARDED_BY(m) FL_THREAD(guarded_by(m))
#define FL_REQUIRES(m) FL_THREAD(requires_capability(m))

namespace fastload {

class FL_THREAD(capability("mutex")) Mutex {
 public:
  void lock() FL_THREAD(acquire_capability()) { mutex_.lock(); }
  void unlock() FL_THREAD(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class FL_THREAD(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) FL_THREAD(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() FL_THREAD(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Every wait is made in a loop that tests its condition.
class CondVar {
 public:
  void wait(Mutex& mutex) FL_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  void wait_until(Mutex& mutex, std::chrono::steady_clock::time_point deadline) FL_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_until(lock, deadline);
    lock.release();
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace fastload
