// What ThreadSanitizer sees of the fake driver.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define FAKE_CUDA_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FAKE_CUDA_TSAN 1
#endif
#endif

#ifdef FAKE_CUDA_TSAN
extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace fake_cuda {

// While one lives, its thread's locks order nothing and its accesses are not looked at: the books
// of the fake must not order what a real driver would leave unordered.
class Unseen {
 public:
#ifdef FAKE_CUDA_TSAN
  Unseen() {
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
#else
  Unseen() {}
  ~Unseen() {}
#endif
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

// The same thread's exception from an Unseen: what it tells of edges is heard.
class Seen {
 public:
#ifdef FAKE_CUDA_TSAN
  Seen() { AnnotateIgnoreSyncEnd(__FILE__, __LINE__); }
  ~Seen() { AnnotateIgnoreSyncBegin(__FILE__, __LINE__); }
#else
  Seen() {}
  ~Seen() {}
#endif
  Seen(const Seen&) = delete;
  Seen& operator=(const Seen&) = delete;
};

// An edge: what is behind acquire(x) comes after what was before release(x). Not in Unseen.
inline void release(void* address) {
#ifdef FAKE_CUDA_TSAN
  __tsan_release(address);
#else
  (void)address;
#endif
}

inline void acquire(void* address) {
#ifdef FAKE_CUDA_TSAN
  __tsan_acquire(address);
#else
  (void)address;
#endif
}

}  // namespace fake_cuda
