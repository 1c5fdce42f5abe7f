// The functions of the driver: modules and kernels, which are host builds of what GPUs run.
#include <cstring>
#include <string>

#include "entry.h"
#include "fake_cuda.h"
#include "host_pixel_kernels.h"

using namespace fake_cuda;
using fastload::CudaFunction;
using fastload::CudaModule;
using fastload::CudaStream;
using fastload::HostPixelKernel;
using fastload::PixelArguments;

extern "C" {

FAKE_CUDA_API CudaResult cuModuleLoadData(CudaModule* module, const void* image) {
  const Entry entry("cuModuleLoadData", kContext | kUnsafe);
  if (entry.result() != kSuccess) return entry.result();
  const auto* const text = static_cast<const char*>(image);
  if (std::strstr(text, ".target") == nullptr) return kInvalidPtx;
  *module = reinterpret_cast<CudaModule>(&entry.books().modules.emplace_back(text));
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuModuleGetFunction(CudaFunction* function, CudaModule module,
                                             const char* name) {
  const Entry entry("cuModuleGetFunction", kContext);
  if (entry.result() != kSuccess) return entry.result();
  for (const std::string& text : entry.books().modules) {
    if (reinterpret_cast<CudaModule>(const_cast<std::string*>(&text)) != module) continue;
    if (text.find(".entry " + std::string(name) + "(") == std::string::npos) return kNotFound;
    const HostPixelKernel kernel = fastload::host_pixel_kernel(name);
    if (kernel == nullptr) return entry.books().misused("a kernel that the fake lacks", kNotFound);
    *function = reinterpret_cast<CudaFunction>(kernel);
    return kSuccess;
  }
  return entry.books().misused("an unknown module", kInvalidHandle);
}

FAKE_CUDA_API CudaResult cuLaunchKernel(CudaFunction function, unsigned grid_x, unsigned grid_y,
                                        unsigned grid_z, unsigned block_x, unsigned block_y,
                                        unsigned block_z, unsigned shared_bytes, CudaStream stream,
                                        void** arguments, void** extra) {
  Stream* queue = nullptr;
  std::unique_ptr<Operation> launch;
  {
    Entry entry("cuLaunchKernel", kContext);
    if (entry.result() != kSuccess) return entry.result();
    queue = entry.open(stream);
    if (entry.result() != kSuccess) return entry.result();
    if (grid_x == 0 || grid_y == 0 || grid_y > 65535 || grid_z != 1) return kInvalidValue;
    if (block_x == 0 || block_x > 1024 || block_y != 1 || block_z != 1) return kInvalidValue;
    if (shared_bytes != 0 || extra != nullptr || arguments == nullptr) return kInvalidValue;
    const auto kernel = reinterpret_cast<HostPixelKernel>(function);
    const auto argument = *static_cast<const PixelArguments*>(arguments[0]);
    launch = std::make_unique<Operation>();
    launch->reads = {static_cast<const std::byte*>(argument.in), 1};
    launch->writes = {static_cast<const std::byte*>(argument.out), 1};
    launch->work = [=](Stream&) { fastload::run_grid(kernel, grid_x, grid_y, block_x, argument); };
    ++entry.books().launches;
  }
  push(*queue, std::move(launch));
  return kSuccess;
}
}
