#include "base/error.h"

#include <system_error>

namespace fastload {

void throw_os_error(int code, const std::string& action, const std::string& path) {
  throw OsError(code, action + ": " + std::generic_category().message(code), path);
}

}  // namespace fastload
