// Attributes that state which mutex guards what. Clang's thread-safety analysis, which the tests
// run, reports code that does not hold the mutex; other compilers see nothing.
#pragma once

#if defined(__clang__)
#define FL_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define FL_THREAD_ATTRIBUTE(x)
#endif

// Of a class: objects are locks; or hold one from construction to destruction.
#define FL_CAPABILITY(name) FL_THREAD_ATTRIBUTE(capability(name))
#define FL_SCOPED_CAPABILITY FL_THREAD_ATTRIBUTE(scoped_lockable)

// Of a member or variable: it, or what it points to, is accessed only with the mutex held.
#define FL_GUARDED_BY(mutex) FL_THREAD_ATTRIBUTE(guarded_by(mutex))
#define FL_PT_GUARDED_BY(mutex) FL_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
// Of a mutex: where both are held, it is locked first.
#define FL_ACQUIRED_BEFORE(mutex) FL_THREAD_ATTRIBUTE(acquired_before(mutex))

// Of a function: the caller holds the mutex; or does not, because the function locks it.
#define FL_REQUIRES(mutex) FL_THREAD_ATTRIBUTE(requires_capability(mutex))
#define FL_EXCLUDES(mutex) FL_THREAD_ATTRIBUTE(locks_excluded(mutex))
// Of a function: it locks, unlocks, or returns the mutex. Without an argument: the object itself.
#define FL_ACQUIRE(...) FL_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define FL_RELEASE(...) FL_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define FL_RETURN_CAPABILITY(mutex) FL_THREAD_ATTRIBUTE(lock_returned(mutex))
