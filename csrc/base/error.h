// The exceptions of the core. bindings/errors.cpp translates each to its Python class. Messages are
// for the user: they name the file, the field and the sample.
#pragma once

#include <stdexcept>
#include <string>

namespace fastload {

// The content of a file contradicts its header or manifest (Python: fastload.FormatError, a
// ValueError).
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The iterator was stopped, or belongs to the parent of this forked process
// (fastload.StoppedError).
class StoppedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A system call failed (Python: the OSError subclass of `code`, with file name).
class OsError : public std::runtime_error {
 public:
  OsError(int code, const std::string& message, std::string path)
      : std::runtime_error(message), code_(code), path_(std::move(path)) {}
  int code() const { return code_; }
  const std::string& path() const { return path_; }

 private:
  int code_;
  std::string path_;
};

// The CUDA driver cannot be used, or one of its calls failed (fastload.CudaError).
class CudaError : public std::runtime_error {
 public:
  explicit CudaError(const std::string& message, int code = 0)
      : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }  // the driver's; 0 if the driver was not called

 private:
  int code_;
};

// Throws the OsError of `code` (an errno), its message being "`action`: strerror(code)".
[[noreturn]] void throw_os_error(int code, const std::string& action, const std::string& path);

}  // namespace fastload
