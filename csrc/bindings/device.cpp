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

using PixelArgument =  // plan, height, width, seed, epoch, draws, from, raw, out
    std::tuple<std::shared_ptr<PixelPlan>, std::int64_t, std::int64_t, std::uint64_t, std::uint64_t,
               IndexArray, std::uintptr_t, std::uintptr_t, std::uintptr_t>;

const std::byte* host(std::uintptr_t address) {
  return reinterpret_cast<const std::byte*>(address);
}

// The layout of a shipment, which batches of one shape share: which arrays are copied, and where.
class ShipmentForm {
 public:
  using Sources = py::typing::List<py::object>;
  using Copy = std::tuple<std::size_t, std::size_t>;                 // array, bytes
  using Packed = std::tuple<std::size_t, std::size_t, std::size_t>;  // array, offset, bytes

  ShipmentForm(std::vector<Copy> copies, std::vector<Packed> packed)
      : copies_(std::move(copies)), packed_(std::move(packed)) {}

  // `sources`: arrays, or addresses. `targets`: addresses of the arrays that are not packed, then
  // the address of the packed ones.
  Shipment filled(const Sources& sources, const std::vector<std::uintptr_t>& targets) const {
    if (targets.size() != copies_.size() + 1)
      throw py::value_error("there must be " + std::to_string(copies_.size() + 1) +
                            " targets, got " + std::to_string(targets.size()));
    Shipment shipment;
    shipment.copies.reserve(copies_.size());
    shipment.packed.reserve(packed_.size());
    auto target = targets.begin();
    for (const auto& [array, bytes] : copies_) {
      shipment.copies.push_back({*target++, data_of(sources[array], bytes), bytes});
    }
    for (const auto& [array, place, bytes] : packed_) {
      shipment.packed.push_back({*target + place, data_of(sources[array], bytes), bytes});
    }
    return shipment;
  }

 private:
  static const std::byte* data_of(const py::handle& source, std::size_t bytes) {
    if (!py::isinstance<py::array>(source)) return host(source.cast<std::uintptr_t>());
    const auto array = py::reinterpret_borrow<py::array>(source);
    if (static_cast<std::size_t>(array.nbytes()) != bytes) {
      throw py::value_error("an array must have " + std::to_string(bytes) + " bytes, got " +
                            std::to_string(array.nbytes()));
    }
    return static_cast<const std::byte*>(array.data());
  }

  const std::vector<Copy> copies_;
  const std::vector<Packed> packed_;
};

PixelJob job_of(const PixelArgument& argument) {
  const auto& [plan, height, width, seed, epoch, draws, from, raw, out] = argument;
  const auto numbers = as_span(draws);
  return {ImageDelivery{plan, plan->shape(height, width), plan->keys(seed, epoch)},
          {numbers.begin(), numbers.end()},
          host(from),
          raw,
          out};
}

CudaStream stream_of(std::uintptr_t handle) { return reinterpret_cast<CudaStream>(handle); }

// Thread-safe, for programs that share an iterator between threads.
class PyTransfer {
 public:
  PyTransfer(std::shared_ptr<CudaDevice> device, const py::object& pool,
             std::shared_ptr<StreamTimes> times) {
    check_not_exiting();
    std::shared_ptr<SlotPool> staging = pool_of(pool);
    const Unlocked unlocked;  // creating a stream takes long
    transfer_ = std::make_unique<Transfer>(std::move(device), std::move(staging), std::move(times));
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

  std::tuple<Transfer::Ticket, bool> ask(std::uintptr_t stream) {
    const Unlocked unlocked;
    MutexLock lock(mutex_);
    const auto [oldest, is_captured] = transfer_->ask(stream_of(stream));
    return {oldest, is_captured};
  }

  Transfer::Ticket submit(const ShipmentForm& form, const ShipmentForm::Sources& sources,
                          const std::vector<std::uintptr_t>& targets,
                          const std::vector<PixelArgument>& pixels, std::uintptr_t stream,
                          Transfer::Ticket first) {
    check_not_exiting();
    Shipment shipment = form.filled(sources, targets);
    for (const PixelArgument& job : pixels) shipment.pixels.push_back(job_of(job));
    const Unlocked unlocked;
    MutexLock lock(mutex_);
    return transfer_->submit(shipment, stream_of(stream), first);
  }

  void deliver(Transfer::Ticket ticket, std::uintptr_t stream) {
    const Unlocked unlocked;
    MutexLock lock(mutex_);
    transfer_->deliver(ticket, stream_of(stream));
  }

  bool done(Transfer::Ticket ticket) {
    const Unlocked unlocked;
    MutexLock lock(mutex_);
    return transfer_->done(ticket);
  }

  void wait(Transfer::Ticket ticket) {
    const auto wait_until = [&](Transfer::Clock::time_point deadline) {
      MutexLock lock(mutex_);
      return transfer_->wait_until(ticket, deadline);
    };
    wait_in_slices(wait_until, check_not_exiting);
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
  const std::uint64_t generation_ = fork_generation();
  Mutex mutex_;  // a thread that holds it never waits for the GIL
  std::unique_ptr<Transfer> transfer_ FL_GUARDED_BY(mutex_);
};

std::shared_ptr<CudaDevice> device_of(int ordinal, const std::string& library) {
  const Unlocked unlocked;  // initialising the driver takes long
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
                             "CUDA version of the driver: 13000 is 13.0.")
      .def_property_readonly("numa_node", &CudaDevice::numa_node,
                             "NUMA node of the GPU; -1: unknown, or there is only one.")
      .def("load_kernel", &load_kernel_of,
           "Raises CudaError unless the driver accepts the kernel for this plan.", "plan"_a);

  py::class_<StreamTimes, std::shared_ptr<StreamTimes>>(
      module, "StreamTimes", "How long a GPU's streams took for the batches of a loader.")
      .def(py::init<std::shared_ptr<CudaDevice>>(), "device"_a)
      .def("read", &figures_of, "What has passed; nothing in a forked child.");

  // Addresses and streams are integers, as in torch.
  py::class_<ShipmentForm>(
      module, "ShipmentForm",
      "Layout of a shipment: which arrays of a batch are copied; small ones are packed.")
      .def(py::init<std::vector<ShipmentForm::Copy>, std::vector<ShipmentForm::Packed>>(),
           "copies"_a, "packed"_a);
  py::class_<PyTransfer>(module, "Transfer", "The copies of one iterator's batches to a GPU.")
      .def(py::init<std::shared_ptr<CudaDevice>, const py::object&, std::shared_ptr<StreamTimes>>(),
           "device"_a, "pool"_a, "times"_a)
      .def("check", &PyTransfer::check, "Raises CudaError if nothing can be submitted now.",
           "stream"_a)
      .def(
          "ask", &PyTransfer::ask,
          "From now on the stream has nothing to do, until it is handed a batch. Returns the first "
          "ticket that is not done, and whether a graph is captured from the stream.",
          "stream"_a)
      .def("submit", &PyTransfer::submit,
           "Enqueues the copies of a batch behind the stream's work and returns its ticket. "
           "Delivers the batch `first` before that, unless it is -1.",
           "form"_a, "sources"_a, "targets"_a, "pixels"_a, "stream"_a, "first"_a = Transfer::kNone)
      .def("deliver", &PyTransfer::deliver,
           "Makes the batch visible to work that the stream gets from now on.", "ticket"_a,
           "stream"_a)
      .def("done", &PyTransfer::done, "Whether memory on either side is no longer in use.",
           "ticket"_a)
      .def("wait", &PyTransfer::wait, "Waits until that is so.", "ticket"_a)
      .def("stats", &PyTransfer::stats);
}

}  // namespace fastload::bindings
