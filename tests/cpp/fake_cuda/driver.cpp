// The functions of the driver: initialisation, contexts, memory, copies.
#include "device/driver.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "entry.h"
#include "fake_cuda.h"

using namespace fake_cuda;
using fastload::CudaContext;
using fastload::CudaOrdinal;
using fastload::CudaStream;
using fastload::DevicePointer;

namespace {

struct Code {
  CudaResult code;
  const char *name, *text;
};
constexpr Code kCodes[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a "
     "capturing stream"},
};

const Code* code_of(CudaResult result) {
  for (const Code& code : kCodes) {
    if (code.code == result) return &code;
  }
  return nullptr;
}

const std::byte* as_bytes(const void* data) { return static_cast<const std::byte*>(data); }

bool overlaps(const std::map<const std::byte*, std::size_t>& ranges, const void* data,
              std::size_t bytes) {
  for (const auto& [first, size] : ranges) {
    if (Range{first, size}.overlaps(as_bytes(data), bytes)) return true;
  }
  return false;
}

}  // namespace

extern "C" {

FAKE_CUDA_API CudaResult cuInit(unsigned flags) {
  const Entry entry("cuInit", kNothing);
  if (entry.result() != kSuccess) return entry.result();
  if (flags != 0) return kInvalidValue;
  if (entry.books().device_count == 0) return 100;
  entry.books().pid = getpid();
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuDriverGetVersion(int* version) {
  const Entry entry("cuDriverGetVersion", kNothing);
  if (entry.result() == kSuccess) *version = entry.books().version;
  return entry.result();
}

FAKE_CUDA_API CudaResult cuGetErrorName(CudaResult error, const char** name) {
  const Code* const code = code_of(error);
  *name = code == nullptr ? nullptr : code->name;
  return code == nullptr ? kInvalidValue : kSuccess;
}

FAKE_CUDA_API CudaResult cuGetErrorString(CudaResult error, const char** text) {
  const Code* const code = code_of(error);
  *text = code == nullptr ? nullptr : code->text;
  return code == nullptr ? kInvalidValue : kSuccess;
}

FAKE_CUDA_API CudaResult cuDeviceGetCount(int* count) {
  const Entry entry("cuDeviceGetCount", kInitialised);
  if (entry.result() == kSuccess) *count = entry.books().device_count;
  return entry.result();
}

FAKE_CUDA_API CudaResult cuDeviceGet(CudaOrdinal* device, int ordinal) {
  const Entry entry("cuDeviceGet", kInitialised);
  if (entry.result() != kSuccess) return entry.result();
  if (ordinal < 0 || ordinal >= entry.books().device_count) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuDeviceGetPCIBusId(char* id, int bytes, CudaOrdinal device) {
  const Entry entry("cuDeviceGetPCIBusId", kInitialised);
  if (entry.result() != kSuccess) return entry.result();
  std::snprintf(id, static_cast<std::size_t>(bytes), "FA4E:%02X:00.0", device + 1);
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuDevicePrimaryCtxRetain(CudaContext* context, CudaOrdinal device) {
  const Entry entry("cuDevicePrimaryCtxRetain", kInitialised);
  if (entry.result() != kSuccess) return entry.result();
  if (device < 0 || device >= entry.books().device_count) return kInvalidDevice;
  Context& primary = entry.books().context_of(device);
  ++primary.retained;
  *context = reinterpret_cast<CudaContext>(&primary);
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuCtxPushCurrent_v2(CudaContext context) {
  const Entry entry("cuCtxPushCurrent", kInitialised);
  if (entry.result() != kSuccess) return entry.result();
  for (const auto& [ordinal, known] : entry.books().contexts) {
    if (reinterpret_cast<CudaContext>(known.get()) != context || known->retained == 0) continue;
    this_thread().contexts.push_back(known.get());
    return kSuccess;
  }
  return entry.books().misused("an unknown context", kInvalidContext);
}

FAKE_CUDA_API CudaResult cuCtxPopCurrent_v2(CudaContext* context) {
  const Entry entry("cuCtxPopCurrent", kInitialised);
  if (entry.result() != kSuccess) return entry.result();
  if (this_thread().current() == nullptr) {
    return entry.books().misused("no context to pop", kInvalidContext);
  }
  *context = reinterpret_cast<CudaContext>(this_thread().current());
  this_thread().contexts.pop_back();
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuThreadExchangeStreamCaptureMode(int* mode) {
  const Entry entry("cuThreadExchangeStreamCaptureMode", kNothing);
  if (entry.result() != kSuccess) return entry.result();
  if (*mode < 0 || *mode > 2) return kInvalidValue;
  std::swap(*mode, this_thread().capture_mode);
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuMemHostAlloc(void** data, std::size_t bytes, unsigned) {
  const Entry entry("cuMemHostAlloc", kContext | kUnsafe);
  if (entry.result() != kSuccess) return entry.result();
  constexpr std::size_t kPage = 4096;
  if (bytes == 0) return kInvalidValue;
  *data = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (*data == nullptr) return kOutOfMemory;
  entry.books().host_allocations[as_bytes(*data)] = bytes;
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuMemFreeHost(void* data) {
  const Entry entry("cuMemFreeHost", kContext | kUnsafe);
  if (entry.result() != kSuccess) return entry.result();
  auto& allocations = entry.books().host_allocations;
  const auto found = allocations.find(as_bytes(data));
  if (found == allocations.end()) return entry.books().misused("not to be freed", kInvalidValue);
  if (entry.books().busy(data, found->second)) {
    entry.books().misused("host memory is freed while it is copied", kSuccess);
  }
  allocations.erase(found);
  std::free(data);
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuMemHostRegister_v2(void* data, std::size_t bytes, unsigned) {
  const Entry entry("cuMemHostRegister", kContext | kUnsafe);
  if (entry.result() != kSuccess) return entry.result();
  if (bytes == 0 || data == nullptr) return kInvalidValue;
  State& books = entry.books();
  if (overlaps(books.registered, data, bytes) || overlaps(books.host_allocations, data, bytes)) {
    return books.misused("memory is registered twice", kAlreadyRegistered);
  }
  books.registered[as_bytes(data)] = bytes;
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuMemHostUnregister(void* data) {
  const Entry entry("cuMemHostUnregister", kContext | kUnsafe);
  if (entry.result() != kSuccess) return entry.result();
  auto& registered = entry.books().registered;
  const auto found = registered.find(as_bytes(data));
  if (found == registered.end()) return entry.books().misused("not registered", kNotRegistered);
  if (entry.books().busy(data, found->second)) {
    entry.books().misused("memory is unregistered while it is copied", kSuccess);
  }
  registered.erase(found);
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, std::size_t bytes,
                                              CudaStream stream) {
  auto* const target = reinterpret_cast<std::byte*>(to);
  Stream* queue = nullptr;
  std::unique_ptr<Operation> copy;
  std::byte* staged = nullptr;
  {
    Entry entry("cuMemcpyHtoDAsync", kContext);
    if (entry.result() != kSuccess) return entry.result();
    queue = entry.open(stream);
    if (entry.result() != kSuccess) return entry.result();
    if (bytes == 0) return kSuccess;
    copy = std::make_unique<Operation>();
    copy->writes = {target, bytes};
    if (entry.books().pinned(from, bytes)) {
      copy->reads = {as_bytes(from), bytes};
      copy->work = copying(target, as_bytes(from), bytes);
    } else {
      ++entry.books().pageable;
      staged = static_cast<std::byte*>(std::malloc(bytes));
      copy->work = [=](Stream& self) {
        copying(target, staged, bytes)(self);
        std::free(staged);
      };
    }
  }
  // As drivers do: what is not pinned has been read when the call returns.
  if (staged != nullptr) std::memcpy(staged, from, bytes);
  push(*queue, std::move(copy));
  return kSuccess;
}
}
