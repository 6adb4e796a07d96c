// SPDX-License-Identifier: BSD-3-Clause
// Helpers of fuzz targets: a file made of bytes, and a check that only expected
// errors are thrown.
//
//   extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
//     const MemoryFile file(bytes, count);
//     expect_only_errors(file.path(), [&] { open_weights(file.path()); });
//     return 0;
//   }
#pragma once

#include <c10/util/Exception.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace dtensor::fuzz {

/// A file with those bytes that is not in any folder.
class MemoryFile {
 public:
  MemoryFile(const void* bytes, size_t count)
      : file_(::memfd_create("fuzz", MFD_CLOEXEC)),
        path_("/proc/self/fd/" + std::to_string(file_)) {
    const auto* from = static_cast<const char*>(bytes);
    while (count > 0) {
      const auto done = ::write(file_, from, count);
      if (done <= 0) {
        std::perror("write to a memory file");
        std::abort();
      }
      from += done;
      count -= static_cast<size_t>(done);
    }
  }
  ~MemoryFile() {
    ::close(file_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const {
    return path_;
  }

 private:
  int file_;
  std::string path_;
};

[[noreturn]] inline void fail(const char* why, const std::string& error) {
  std::fprintf(stderr, "%s: %s\n", why, error.c_str());
  std::abort();
}

/// Calls `fn`. Aborts if it throws anything but a c10::Error with a text that
/// begins with "[where]" and contains `place`.
template <class Fn>
void expect_only_errors(const std::string& place, const Fn& fn) {
  try {
    fn();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (!text.starts_with("[")) {
      fail("an error without [where]", text);
    }
    if (text.find(place) == text.npos) {
      fail("an error that does not name the place", text);
    }
  } catch (const std::exception& error) {
    fail("an undocumented exception", error.what());
  }
}

} // namespace dtensor::fuzz
