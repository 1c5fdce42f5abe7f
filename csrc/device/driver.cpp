#include "device/driver.h"

#include <dlfcn.h>

#include <map>
#include <memory>

#include "base/error.h"
#include "base/fork.h"
#include "base/mutex.h"

namespace fastload {
namespace {

struct Opened {
  Mutex mutex;
  std::map<std::string, std::unique_ptr<const Driver>> drivers FL_GUARDED_BY(mutex);
};

void* find(void* handle, const char* symbol, const std::string& library) {
  void* address = dlsym(handle, symbol);
  if (address == nullptr) {
    throw CudaError(library + " has no function " + symbol +
                    ": the NVIDIA driver is older than CUDA 10.1");
  }
  return address;
}

std::unique_ptr<const Driver> open(const std::string& library) {
  // Never closed, even if a function is missing: drivers do not support being unloaded.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    throw CudaError("the CUDA driver cannot be opened (" +
                    std::string(reason != nullptr ? reason : library) +
                    "): is it installed, and visible in this container?");
  }
  auto driver = std::make_unique<Driver>();
#define FASTLOAD_FIND(member, symbol, arguments) \
  driver->member = reinterpret_cast<CudaResult(*) arguments>(find(handle, symbol, library));
  FASTLOAD_DRIVER_FUNCTIONS(FASTLOAD_FIND)
#undef FASTLOAD_FIND
  return driver;
}

}  // namespace

const Driver& load_driver(const std::string& library) {
  auto& opened = of_this_process<Opened>();
  MutexLock lock(opened.mutex);
  auto& driver = opened.drivers[library];
  if (driver == nullptr) driver = open(library);
  return *driver;
}

}  // namespace fastload
