// The functions of the CUDA driver, looked up when the first CUDA loader starts: the build needs no
// toolkit, and one build runs with every driver.
#pragma once

#include <cstddef>
#include <string>

namespace fastload {

// The driver's own types, by the names and sizes of its ABI.
using CudaResult = int;
using CudaOrdinal = int;
using CudaContext = struct CUctx_st*;
using CudaStream = struct CUstream_st*;  // nullptr: the legacy default stream, which is torch's
using CudaEvent = struct CUevent_st*;
using CudaModule = struct CUmod_st*;
using CudaFunction = struct CUfunc_st*;
using DevicePointer = unsigned long long;

// Members are named like the driver's functions, without the suffix of their version. The functions
// are not those of per-thread default streams, since torch's default stream is the legacy one.
#define FASTLOAD_DRIVER_FUNCTIONS(X)                                                              \
  X(cuInit, "cuInit", (unsigned flags))                                                           \
  X(cuDriverGetVersion, "cuDriverGetVersion", (int* version))                                     \
  X(cuGetErrorName, "cuGetErrorName", (CudaResult error, const char** name))                      \
  X(cuGetErrorString, "cuGetErrorString", (CudaResult error, const char** text))                  \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int* count))                                           \
  X(cuDeviceGet, "cuDeviceGet", (CudaOrdinal * device, int ordinal))                              \
  X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char* id, int bytes, CudaOrdinal device))        \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain",                                         \
    (CudaContext * context, CudaOrdinal device))                                                  \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (CudaContext context))                               \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (CudaContext * context))                               \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int* mode))          \
  X(cuMemHostAlloc, "cuMemHostAlloc", (void** data, std::size_t bytes, unsigned flags))           \
  X(cuMemFreeHost, "cuMemFreeHost", (void* data))                                                 \
  X(cuMemHostRegister, "cuMemHostRegister_v2", (void* data, std::size_t bytes, unsigned flags))   \
  X(cuMemHostUnregister, "cuMemHostUnregister", (void* data))                                     \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                                                    \
    (DevicePointer to, const void* from, std::size_t bytes, CudaStream stream))                   \
  X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority",                                     \
    (CudaStream * stream, unsigned flags, int priority))                                          \
  X(cuStreamSynchronize, "cuStreamSynchronize", (CudaStream stream))                              \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", (CudaStream stream, CudaEvent event, unsigned flags)) \
  X(cuStreamIsCapturing, "cuStreamIsCapturing", (CudaStream stream, int* status))                 \
  X(cuEventCreate, "cuEventCreate", (CudaEvent * event, unsigned flags))                          \
  X(cuEventDestroy, "cuEventDestroy_v2", (CudaEvent event))                                       \
  X(cuEventRecord, "cuEventRecord", (CudaEvent event, CudaStream stream))                         \
  X(cuEventQuery, "cuEventQuery", (CudaEvent event))                                              \
  X(cuEventElapsedTime, "cuEventElapsedTime",                                                     \
    (float* milliseconds, CudaEvent begin, CudaEvent end))                                        \
  X(cuModuleLoadData, "cuModuleLoadData", (CudaModule * module, const void* image))               \
  X(cuModuleGetFunction, "cuModuleGetFunction",                                                   \
    (CudaFunction * function, CudaModule module, const char* name))                               \
  X(cuLaunchKernel, "cuLaunchKernel",                                                             \
    (CudaFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,  \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CudaStream stream,                \
     void** arguments, void** extra))

struct Driver {
#define FASTLOAD_MEMBER(member, symbol, arguments) CudaResult(*member) arguments = nullptr;
  FASTLOAD_DRIVER_FUNCTIONS(FASTLOAD_MEMBER)
#undef FASTLOAD_MEMBER
};

// Opens a library at the first call with its name, and keeps it for the life of the process. Calls
// no function of it. Thread-safe. Throws CudaError, which names the library or the missing
// function.
const Driver& load_driver(const std::string& library);

// The name under which drivers are installed.
inline constexpr const char* kCudaLibrary = "libcuda.so.1";

// Results that do not mean that the device failed.
inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr CudaResult kCudaNotReady = 600;

}  // namespace fastload
