// A pread that stalls, as that of a server which does not answer: no signal ends it. Preloaded by
// test_stalled_reads.py. Reads of files whose name ends in ".slow" or ".npy" stall while the file
// named by FASTLOAD_TEST_STALL exists.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static int stalls(int file) {
  const char* marker = getenv("FASTLOAD_TEST_STALL");
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (marker == NULL || length < 0) return 0;
  path[length] = 0;
  return strstr(path, "stalling") != NULL && access(marker, F_OK) == 0;
}

static void wait_while_stalling(int file) {
  while (stalls(file)) {
    struct timespec left = {0, 20000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
  }
}

ssize_t pread64(int file, void* out, size_t size, off64_t offset) {
  static ssize_t (*next)(int, void*, size_t, off64_t);
  if (next == NULL) next = (ssize_t(*)(int, void*, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
  wait_while_stalling(file);
  return next(file, out, size, offset);
}

ssize_t pread(int file, void* out, size_t size, off_t offset) {
  return pread64(file, out, size, offset);
}
