#include "storage/guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "fixtures.h"

using namespace fastload;
using fixtures::Bytes;
using fixtures::Folder;

namespace {

constexpr std::size_t kPage = 4096;

// Four mapped pages of a file that has only the first two left.
class HalfGone {
 public:
  HalfGone() {
    fixtures::write_file(folder_ / "data", Bytes(4 * kPage, std::byte{7}));
    const int file = open((folder_ / "data").c_str(), O_RDWR | O_CLOEXEC);
    void* data = mmap(nullptr, 4 * kPage, PROT_READ, MAP_SHARED, file, 0);
    CHECK(data != MAP_FAILED && ftruncate(file, 2 * kPage) == 0);
    close(file);
    data_ = static_cast<const std::byte*>(data);
  }
  ~HalfGone() { munmap(const_cast<std::byte*>(data_), 4 * kPage); }
  const std::byte* data() const { return data_; }
  const std::byte* gone() const { return data_ + 2 * kPage; }
  ByteRange range() const { return {data_, data_ + 4 * kPage}; }

 private:
  Folder folder_;
  const std::byte* data_;
};

const std::byte* copy_all(const HalfGone& file) {
  std::byte out[4 * kPage];
  const ByteRange range = file.range();
  const std::byte* data = file.data();
  return guarded({&range, 1}, [&out, data] { std::memcpy(out, data, sizeof out); });
}

void touch(const std::byte* address) { (void)*static_cast<const volatile std::byte*>(address); }

// How a child ends that runs body(): the signal that killed it, or 1000 + its exit status.
template <class Body>
int ending_of(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);  // a loop is a failure, not a hang
    signal(SIGBUS, SIG_DFL);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 1000 + WEXITSTATUS(status);
}

constexpr int kFine = 1000;

volatile sig_atomic_t calls = 0;
void count_call(int) { calls = calls + 1; }
void count_call_with_info(int, siginfo_t*, void*) { calls = calls + 1; }
void exit_with_42(int) { _exit(42); }
void map_zeros(int, siginfo_t* info, void*) {  // cures the fault, as a garbage collector would
  calls = calls + 1;
  const auto page = reinterpret_cast<std::uintptr_t>(info->si_addr) / kPage * kPage;
  mmap(reinterpret_cast<void*>(page), kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
       0);
}

void install(void (*handler)(int, siginfo_t*, void*), struct sigaction* before = nullptr) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGBUS, &action, before);
}

// As Python's faulthandler: puts back what was there before and sends the signal again.
struct sigaction restored = {};
[[maybe_unused]] void restore_and_raise(int, siginfo_t*, void*) {
  calls = calls + 1;
  if (calls > 100) _exit(99);
  sigaction(SIGBUS, &restored, nullptr);
  raise(SIGBUS);
}

}  // namespace

int main() {
  signal(SIGBUS, SIG_DFL);  // not the sanitizer's

  check::promise("a page that is gone: its address, a thousand times, on several threads", [] {
    const auto work = [] {
      const HalfGone file;
      for (int i = 0; i < 1000; ++i) CHECK(copy_all(file) == file.gone());
      const ByteRange range = file.range();
      CHECK(guarded({&range, 1}, [&] { touch(file.data()); }) == nullptr);
    };
    work();
    std::vector<std::thread> team;
    for (int t = 0; t < 4; ++t) team.emplace_back(work);
    for (std::thread& thread : team) thread.join();
    sigset_t mask;
    sigprocmask(SIG_SETMASK, nullptr, &mask);
    CHECK(sigismember(&mask, SIGBUS) == 0);
  });

  check::promise("a fault outside the ranges, or outside a copy, ends the process by SIGBUS", [] {
    const HalfGone file, other;
    CHECK_EQUAL(ending_of([&] {
                  copy_all(file);
                  touch(file.gone());
                }),
                SIGBUS);
    CHECK_EQUAL(ending_of([&] {
                  const ByteRange range = file.range();
                  guarded({&range, 1}, [&] { touch(other.gone()); });
                }),
                SIGBUS);
  });

  check::promise("the handler that was there before sees foreign faults, and may cure them", [] {
    const HalfGone file, other;
    CHECK_EQUAL(ending_of([&] {
                  signal(SIGBUS, exit_with_42);
                  CHECK(copy_all(file) == file.gone());
                  touch(other.gone());
                }),
                1042);
    CHECK_EQUAL(ending_of([&] {
                  install(map_zeros);
                  for (int i = 0; i < 3; ++i) {
                    CHECK(copy_all(file) == file.gone());
                    touch(other.gone() + (i % 2) * static_cast<int>(kPage));
                  }
                  CHECK_EQUAL(calls, 2);
                }),
                kFine);
  });

  check::promise("a handler that returns without a cure cannot make the process loop", [] {
    const HalfGone file, other;
    for (bool with_info : {false, true}) {
      CHECK_EQUAL(ending_of([&] {
                    with_info ? install(count_call_with_info) : (void)signal(SIGBUS, count_call);
                    copy_all(file);
                    touch(other.gone());
                  }),
                  SIGBUS);
    }
  });

#if !defined(__SANITIZE_THREAD__)  // which delivers raise() after the handler has returned
  check::promise("a handler installed later is found and chained; one that calls back ends", [] {
    const HalfGone file, other;
    CHECK_EQUAL(ending_of([&] {
                  copy_all(file);
                  install(restore_and_raise, &restored);  // restored is our own handler
                  for (int i = 0; i < 3; ++i) CHECK(copy_all(file) == file.gone());
                  CHECK_EQUAL(calls, 0);
                  touch(other.gone());
                }),
                SIGBUS);
    CHECK_EQUAL(ending_of([&] {
                  install(restore_and_raise, &restored);
                  copy_all(file);
                  sigaction(SIGBUS, &restored, nullptr);  // "disable": removes ours as well
                  CHECK(copy_all(file) == file.gone());
                  touch(other.gone());
                }),
                SIGBUS);
  });
#endif

  check::promise("a SIGBUS sent by kill() does what it did before us, every time", [] {
    const HalfGone file;
    CHECK_EQUAL(ending_of([&] {
                  signal(SIGBUS, SIG_IGN);
                  copy_all(file);
                  for (int i = 0; i < 20; ++i) kill(getpid(), SIGBUS);
                  CHECK(copy_all(file) == file.gone());
                }),
                kFine);
    CHECK_EQUAL(ending_of([&] {
                  signal(SIGBUS, count_call);
                  copy_all(file);
                  for (int i = 0; i < 20; ++i) kill(getpid(), SIGBUS);
                  CHECK_EQUAL(calls, 20);
                  CHECK(copy_all(file) == file.gone());
                }),
                kFine);
    CHECK_EQUAL(ending_of([&] {
                  copy_all(file);
                  kill(getpid(), SIGBUS);
                }),
                SIGBUS);
  });
}
