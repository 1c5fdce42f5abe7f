// Devices of the fake driver, and forked children.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "check.h"
#include "device/cuda_device.h"
#include "fake_cuda.h"

namespace cuda_fixtures {

// A device that nobody has used, for what is done to one cannot be undone. Number 0 is none of
// them. Not thread-safe.
inline std::shared_ptr<fastload::CudaDevice> fresh_device() {
  static int ordinal = 0;
  fake_cuda_set_devices(++ordinal + 1);
  return fastload::CudaDevice::get(ordinal, FAKE_CUDA);
}

// The status of waitpid() for a child that runs `body`; 0 if it comes to its end.
template <class Body>
int status_of_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace cuda_fixtures
