#include "bindings/bindings.h"

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.attr("__version__") = FASTLOAD_VERSION;
  module.doc() = "The data plane of fastload. Private: use the package.";
  fastload::bindings::register_errors(module);
  fastload::bindings::register_order(module);
  fastload::bindings::register_table(module);
  fastload::bindings::register_pixels(module);
  fastload::bindings::register_device(module);
  fastload::bindings::register_batch(module);
  fastload::bindings::register_batch_builder(module);
  fastload::bindings::register_engine(module);
  fastload::bindings::register_exit(module);
}
