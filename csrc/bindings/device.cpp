#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <chrono>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "bindings/bindings.h"
#include "bindings/exit.h"
#include "device/pixel_launch.h"
#include "device/transfer.h"

namespace fastload::bindings {
namespace {

// A consumer that waits looks for signals (Ctrl-C) this often.
constexpr auto kSlice = std::chrono::milliseconds(50);

using CopyArgument = std::tuple<std::uintptr_t, std::uintptr_t, std::size_t>;  // to, from, bytes
using PixelArgument =  // plan, height, width, seed, epoch, indices, from, raw, out
    std::tuple<std::shared_ptr<PixelPlan>, std::int64_t, std::int64_t, std::uint64_t, std::uint64_t,
               IndexArray, std::uintptr_t, std::uintptr_t, std::uintptr_t>;

const std::byte* host(std::uintptr_t address) {
  return reinterpret_cast<const std::byte*>(address);
}

std::vector<HostToDevice> copies_of(const std::vector<CopyArgument>& arguments) {
  std::vector<HostToDevice> copies;
  for (const auto& [to, from, bytes] : arguments) copies.push_back({to, host(from), bytes});
  return copies;
}

PixelJob job_of(const PixelArgument& argument) {
  const auto& [plan, height, width, seed, epoch, indices, from, raw, out] = argument;
  const auto numbers = as_span(indices);
  return {ImageDelivery{plan, plan->shape(height, width), plan->keys(seed, epoch)},
          {numbers.begin(), numbers.end()},
          host(from),
          raw,
          out};
}

CudaStream stream_of(std::uintptr_t handle) { return reinterpret_cast<CudaStream>(handle); }

// The lock is for programs that share an iterator between threads: they get each other's batches.
class PyTransfer {
 public:
  PyTransfer(std::shared_ptr<CudaDevice> device, const py::object& pool,
             std::shared_ptr<StreamTimes> times) {
    check_not_exiting();
    transfer_ = std::make_unique<Transfer>(std::move(device), pool_of(pool), std::move(times));
  }

  ~PyTransfer() {
    if (generation_ != fork_generation()) {
      (void)transfer_.release();  // the parent's
      return;
    }
    const Unlocked unlocked;  // copies may be running
    transfer_.reset();
  }
  PyTransfer(const PyTransfer&) = delete;
  PyTransfer& operator=(const PyTransfer&) = delete;

  void check(std::uintptr_t stream) {
    const Unlocked unlocked;
    MutexLock lock(mutex_);
    transfer_->check(stream_of(stream));
  }

  void ask(std::uintptr_t stream) {
    const Unlocked unlocked;
    MutexLock lock(mutex_);
    transfer_->ask(stream_of(stream));
  }

  Transfer::Ticket submit(const std::vector<CopyArgument>& copies,
                          const std::vector<CopyArgument>& packed,
                          const std::vector<PixelArgument>& pixels, std::uintptr_t stream) {
    check_not_exiting();
    Shipment shipment{copies_of(copies), copies_of(packed), {}};
    for (const PixelArgument& job : pixels) shipment.pixels.push_back(job_of(job));
    const Unlocked unlocked;
    MutexLock lock(mutex_);
    return transfer_->submit(shipment, stream_of(stream));
  }

  void hand_over(Transfer::Ticket ticket, std::uintptr_t stream) {
    const Unlocked unlocked;
    MutexLock lock(mutex_);
    transfer_->hand_over(ticket, stream_of(stream));
  }

  bool done(Transfer::Ticket ticket) {
    const Unlocked unlocked;
    MutexLock lock(mutex_);
    return transfer_->done(ticket);
  }

  void wait(Transfer::Ticket ticket) {
    while (!wait_a_slice(ticket)) {
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      check_not_exiting();
    }
  }

  py::typing::Dict<py::str, py::int_> stats() {
    TransferStats stats;
    {
      const Unlocked unlocked;
      MutexLock lock(mutex_);
      stats = transfer_->stats();
    }
    py::typing::Dict<py::str, py::int_> out;
    out["bytes"] = stats.bytes;
    out["copies"] = stats.copies;
    out["packed"] = stats.packed;
    out["kernels"] = stats.kernels;
    out["waits"] = stats.waits;
    return out;
  }

 private:
  bool wait_a_slice(Transfer::Ticket ticket) {
    const Unlocked unlocked;
    MutexLock lock(mutex_);
    return transfer_->wait_until(ticket, Transfer::Clock::now() + kSlice);
  }

  const std::uint64_t generation_ = fork_generation();
  Mutex mutex_;  // never wanted by a thread that waits for the GIL
  std::unique_ptr<Transfer> transfer_ FL_GUARDED_BY(mutex_);
};

std::shared_ptr<CudaDevice> device_of(int ordinal, const std::string& library) {
  const Unlocked unlocked;  // initialising the driver takes its time
  return CudaDevice::get(ordinal, library);
}

void load_kernel_of(CudaDevice& self, const PixelPlan& plan) {
  const Unlocked unlocked;  // the driver may compile
  const CudaDevice::Scope scope(self);
  load_kernel(self, plan);
}

py::typing::Dict<py::str, py::int_> figures_of(StreamTimes& times) {
  StreamFigures figures;
  {
    const Unlocked unlocked;
    figures = times.read();
  }
  py::typing::Dict<py::str, py::int_> out;
  out["bytes"] = figures.bytes;
  out["copy_ns"] = figures.copy_ns;
  out["stall_ns"] = figures.stall_ns;
  return out;
}

}  // namespace

void register_device(py::module_& module) {
  using namespace py::literals;
  py::class_<CudaDevice, std::shared_ptr<CudaDevice>>(
      module, "CudaDevice", "One GPU, as all loaders of this process share it.")
      .def(py::init(&device_of), "ordinal"_a, "library"_a = kCudaLibrary)
      .def_property_readonly("ordinal", &CudaDevice::ordinal)
      .def_property_readonly("driver_version", &CudaDevice::driver_version,
                             "CUDA's version as the driver tells it: 13000 is 13.0.")
      .def_property_readonly("numa_node", &CudaDevice::numa_node,
                             "The node beside the GPU; -1: unknown, or there is but one.")
      .def("load_kernel", &load_kernel_of,
           "Raises CudaError unless the driver takes what delivers images so.", "plan"_a);

  py::class_<StreamTimes, std::shared_ptr<StreamTimes>>(
      module, "StreamTimes", "How long a GPU's streams took for the batches of a loader.")
      .def(py::init<std::shared_ptr<CudaDevice>>(), "device"_a)
      .def("read", &figures_of, "What has passed; nothing in a forked child.");

  // Addresses and streams are integers, as torch gives them.
  py::class_<PyTransfer>(module, "Transfer", "The copies of one iterator's batches to a GPU.")
      .def(py::init<std::shared_ptr<CudaDevice>, const py::object&, std::shared_ptr<StreamTimes>>(),
           "device"_a, "pool"_a, "times"_a)
      .def("check", &PyTransfer::check, "Raises CudaError if nothing can be submitted now.",
           "stream"_a)
      .def("ask", &PyTransfer::ask,
           "From now on the stream has nothing to do, until it is handed a batch.", "stream"_a)
      .def("submit", &PyTransfer::submit,
           "Enqueues the copies of a batch behind what the stream was given; returns its ticket.",
           "copies"_a, "packed"_a, "pixels"_a, "stream"_a)
      .def("hand_over", &PyTransfer::hand_over,
           "What the stream is given from now on sees the batch.", "ticket"_a, "stream"_a)
      .def("done", &PyTransfer::done, "Whether memory on either side is no longer in use.",
           "ticket"_a)
      .def("wait", &PyTransfer::wait, "Waits until that is so.", "ticket"_a)
      .def("stats", &PyTransfer::stats);
}

}  // namespace fastload::bindings
