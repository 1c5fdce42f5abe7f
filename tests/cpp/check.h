// What the plain test programs share: a name for each promise, and checks that end the program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

namespace check {

// Whether a sanitizer watches, which makes everything several times slower.
#if defined(FASTLOAD_SANITIZE)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Runs one promise. Its name goes to stdout, so that the last line names the one that broke.
template <class Body>
void promise(const char* name, Body&& body) {
  std::printf("%s\n", name);
  std::fflush(stdout);
  body();
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::_Exit(1);  // from any thread, without destructors that might wait
}

// Integers of any two types.
template <class A, class B>
void equal(const char* file, int line, const char* what, A a, B b) {
  if (std::cmp_equal(a, b)) return;
  fail(file, line,
       std::string("not equal: ") + what + ": " + std::to_string(a) + ", " + std::to_string(b));
}

// The message of the `Error` that body throws; anything else fails.
template <class Error, class Body>
std::string thrown(const char* file, int line, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    fail(file, line, std::string("another error: ") + error.what());
  }
  fail(file, line, "no error");
}

}  // namespace check

#define CHECK(condition) \
  if (!(condition)) check::fail(__FILE__, __LINE__, "not true: " #condition)
#define CHECK_EQUAL(a, b) check::equal(__FILE__, __LINE__, #a " and " #b, a, b)
#define CHECK_THROWS(Error, ...) check::thrown<Error>(__FILE__, __LINE__, [&] { __VA_ARGS__; })
