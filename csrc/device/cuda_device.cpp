#include "device/cuda_device.h"

#include <algorithm>
#include <map>
#include <new>
#include <utility>

#include "base/error.h"
#include "device/numa.h"

namespace fastload {
namespace {

constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr int kCaptureModeRelaxed = 2;
constexpr CudaResult kNotInitialized = 3;
constexpr int kPciIdBytes = 32;

constexpr const char* kForked =
    "CUDA was used before this process was forked from its parent, and cannot be used in it: start "
    "processes by multiprocessing's \"spawn\" or \"forkserver\"";

struct Devices {
  Mutex mutex;
  std::map<std::pair<std::string, int>, std::shared_ptr<CudaDevice>> known FL_GUARDED_BY(mutex);
};

// The fork generation in which a driver was initialised, plus one; 0 if none was.
std::atomic<std::uint64_t>& initialised_in() {
  static std::atomic<std::uint64_t> generation{0};
  return generation;
}

// Whether the context, or the driver, cannot be used any more after this error.
bool is_sticky(CudaResult result) {
  switch (result) {
    case 4:    // DEINITIALIZED: the process is ending
    case 214:  // ECC_UNCORRECTABLE
    case 220:  // NVLINK_UNCORRECTABLE
    case 226:  // CONTAINED
    case 700:  // ILLEGAL_ADDRESS
    case 702:  // LAUNCH_TIMEOUT
    case 709:  // CONTEXT_IS_DESTROYED
    case 710:  // ASSERT
    case 714:  // HARDWARE_STACK_ERROR
    case 715:  // ILLEGAL_INSTRUCTION
    case 716:  // MISALIGNED_ADDRESS
    case 717:  // INVALID_ADDRESS_SPACE
    case 718:  // INVALID_PC
    case 719:  // LAUNCH_FAILED
    case 721:  // TENSOR_MEMORY_LEAK
    case 808:  // MPS_CLIENT_TERMINATED
      return true;
    default:
      return false;
  }
}

// "cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected".
std::string described(const Driver& driver, CudaResult result, const char* call) {
  const char* name = nullptr;
  const char* text = nullptr;
  std::string message = std::string(call) + ": ";
  if (driver.cuGetErrorName(result, &name) == kCudaSuccess && name != nullptr) {
    message += name;
  } else {
    message += "CUDA error " + std::to_string(result);
  }
  if (driver.cuGetErrorString(result, &text) == kCudaSuccess && text != nullptr) {
    message += std::string(": ") + text;
  }
  return message;
}

void initialise(const Driver& driver) {
  const CudaResult result = driver.cuInit(0);
  if (result == kCudaSuccess) {
    initialised_in() = fork_generation() + 1;
    return;
  }
  std::string message = described(driver, result, "cuInit");
  // Other code, such as torch, initialised the driver before the fork.
  if (result == kNotInitialized && fork_generation() > 0) message += std::string(". ") + kForked;
  throw CudaError(message, result);
}

}  // namespace

std::shared_ptr<CudaDevice> CudaDevice::get(int ordinal, const std::string& library) {
  const std::uint64_t initialised = initialised_in();
  if (initialised != 0 && initialised != fork_generation() + 1) throw StoppedError(kForked);
  const Driver& driver = load_driver(library);
  auto& devices = of_this_process<Devices>();
  MutexLock lock(devices.mutex);
  auto& device = devices.known[{library, ordinal}];
  if (device == nullptr) {
    initialise(driver);
    device = std::shared_ptr<CudaDevice>(new CudaDevice(driver, ordinal));
  }
  return device;
}

CudaDevice::CudaDevice(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {
  int count = 0;
  check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (ordinal < 0 || ordinal >= count) {
    throw CudaError("there is no CUDA device " + std::to_string(ordinal) +
                    ": the number of devices that this process sees is " + std::to_string(count));
  }
  CudaOrdinal device = 0;
  check(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  check(driver.cuDriverGetVersion(&driver_version_), "cuDriverGetVersion");
  char pci_id[kPciIdBytes] = {};
  if (driver.cuDeviceGetPCIBusId(pci_id, kPciIdBytes, device) == kCudaSuccess) {
    numa_node_ = numa_node_of(pci_id);
  }
  check(driver.cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
  const Scope scope(*this);  // throws what would fail later
}

CudaDevice::Scope::Scope(const CudaDevice& device)
    : device_(device), capture_mode_(kCaptureModeRelaxed) {
  device.check_usable();
  const Driver& driver = device.driver();
  device.check(driver.cuCtxPushCurrent(device.context_), "cuCtxPushCurrent");
  const CudaResult result = driver.cuThreadExchangeStreamCaptureMode(&capture_mode_);
  if (result == kCudaSuccess) return;
  CudaContext popped = nullptr;
  driver.cuCtxPopCurrent(&popped);
  device.check(result, "cuThreadExchangeStreamCaptureMode");
}

CudaDevice::Scope::~Scope() {
  CudaContext popped = nullptr;
  device_.driver().cuThreadExchangeStreamCaptureMode(&capture_mode_);
  device_.driver().cuCtxPopCurrent(&popped);
}

bool CudaDevice::usable() const {
  return generation_ == fork_generation() && !is_poisoned_.load(std::memory_order_acquire);
}

void CudaDevice::check_usable() const {
  if (generation_ != fork_generation()) throw StoppedError(kForked);
  if (!is_poisoned_.load(std::memory_order_acquire)) return;
  MutexLock lock(mutex_);
  throw CudaError(poison_, poison_code_);
}

void CudaDevice::check(CudaResult result, const char* call) const {
  if (result == kCudaSuccess) return;
  check_usable();  // errors after the first sticky one are consequences of it
  std::string message = described(driver_, result, call);
  if (is_sticky(result)) {
    message +=
        ". CUDA reports such errors late: it may come from a kernel outside fastload "
        "(CUDA_LAUNCH_BLOCKING=1 shows where). Nothing works any more on this GPU in this process";
    MutexLock lock(mutex_);
    if (poison_code_ == kCudaSuccess) {
      poison_ = message;
      poison_code_ = result;
      is_poisoned_.store(true, std::memory_order_release);
    }
  }
  throw CudaError(message, result);
}

SharedEvent CudaDevice::take_event(EventKind kind) {
  CudaEvent event = nullptr;
  {
    MutexLock lock(mutex_);
    auto& spare = spare_events(kind);
    if (!spare.empty()) {
      event = spare.back();
      spare.pop_back();
    }
  }
  const unsigned flags = kind == EventKind::kOrdering ? kEventDisableTiming : 0;
  if (event == nullptr) check(driver_.cuEventCreate(&event, flags), "cuEventCreate");
  return {event, [this, kind](CudaEvent unused) { give_event(kind, unused); }};
}

void CudaDevice::give_event(EventKind kind, CudaEvent event) noexcept {
  if (!usable()) return;
  try {
    MutexLock lock(mutex_);
    spare_events(kind).push_back(event);
  } catch (const std::bad_alloc&) {
    // The event is not used again.
  }
}

std::shared_ptr<SideStream> CudaDevice::take_side_stream() {
  MutexLock lock(streams_mutex_);
  const auto fewest =
      std::min_element(side_streams_.begin(), side_streams_.end(),
                       [](const auto& a, const auto& b) { return a.use_count() < b.use_count(); });
  const bool is_idle = fewest != side_streams_.end() && fewest->use_count() == 1;
  if (is_idle || side_streams_.size() == kMaxSideStreams) return *fewest;
  side_streams_.reserve(kMaxSideStreams);
  CudaStream handle = nullptr;
  check(driver_.cuStreamCreateWithPriority(&handle, kStreamNonBlocking, 0),
        "cuStreamCreateWithPriority");
  return side_streams_.emplace_back(std::make_shared<SideStream>(handle));
}

CudaFunction CudaDevice::kernel(const char* ptx, const std::string& name) {
  MutexLock lock(modules_mutex_);
  CudaModule& module = modules_[ptx];
  if (module == nullptr) check(driver_.cuModuleLoadData(&module, ptx), "cuModuleLoadData");
  CudaFunction& function = kernels_[{module, name}];
  if (function == nullptr) {
    check(driver_.cuModuleGetFunction(&function, module, name.c_str()), "cuModuleGetFunction");
  }
  return function;
}

}  // namespace fastload
