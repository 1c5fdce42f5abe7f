#include "base/error.h"
#include "bindings/bindings.h"

namespace fastload::bindings {
namespace {

// The classes are defined in fastload/errors.py, so that they can be pickled and documented.
void raise(const char* name, const char* message) {
  const py::object type = py::module_::import("fastload.errors").attr(name);
  py::set_error(type, message);
}

void raise_os_error(const OsError& error) {
  const auto path =
      py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefault(error.path().c_str()));
  const auto type = py::reinterpret_borrow<py::object>(PyExc_OSError);
  const py::object value = type(error.code(), error.what(), path);
  // OSError(errno, ...) makes the subclass of that errno, such as PermissionError.
  PyErr_SetObject(py::type::of(value).ptr(), value.ptr());
}

}  // namespace

void register_errors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const FormatError& error) {
      raise("FormatError", error.what());
    } catch (const StoppedError& error) {
      raise("StoppedError", error.what());
    } catch (const CudaError& error) {
      raise("CudaError", error.what());
    } catch (const OsError& error) {
      raise_os_error(error);
    }
  });
}

}  // namespace fastload::bindings
