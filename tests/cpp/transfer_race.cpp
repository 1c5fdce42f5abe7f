// Whether a mistake in the order of things is found: one that was made in transfer.cpp when this
// was built, or one of the loop around it.
//
// transfer_race: runs itself many times, and fails unless ThreadSanitizer reports a data race in
// each of them. With an argument "sources" or "targets" the loop drops that memory too early.
// transfer_race (mistake) (seed) (microseconds): one run.
#include <spawn.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "check.h"
#include "transfer_fixtures.h"

using namespace fastload;

namespace {

constexpr int kRaceFound = 66;  // the exit status of ThreadSanitizer

int run_once(const std::string& mistake, int seed, int microseconds) {
  fake_cuda_seed(static_cast<std::uint64_t>(seed), microseconds);
  const auto device = CudaDevice::get(0, FAKE_CUDA);
  const loop::Mistakes mistakes{mistake == "sources", mistake == "targets"};
  for (int round = 0; round < 3; ++round) {
    loop::Loop loop(device, static_cast<std::uint64_t>(seed * 3 + round), mistakes);
    loop.run(40, round == 1 || mistakes.targets_dropped);
  }
  CHECK_EQUAL(fake_cuda_count("misuses"), 0);
  CHECK_EQUAL(fake_cuda_count("pageable"), 0);
  return 0;
}

int status_of(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::string options = "TSAN_OPTIONS=halt_on_error=1 exitcode=66 atexit_sleep_ms=0";
  char* environment[] = {options.data(), nullptr};
  pid_t child = 0;
  CHECK_EQUAL(
      posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(), environment), 0);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

int main(int count, char** words) {
  if (count == 4) return run_once(words[1], std::atoi(words[2]), std::atoi(words[3]));
  const std::string mistake = count > 1 ? words[1] : "built-in";
  int runs = 0, found = 0;
  for (const int microseconds : {0, 20, 200}) {
    for (int seed = 0; seed < 4; ++seed, ++runs) {
      const int status =
          status_of({words[0], mistake, std::to_string(seed), std::to_string(microseconds)});
      found += status == kRaceFound;
      if (status != kRaceFound) std::printf("seed %d, %d us: %d\n", seed, microseconds, status);
    }
  }
  std::printf("found in %d of %d runs\n", found, runs);
  return found == runs ? 0 : 1;
}
