// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/mapped_file_impl.h>

#include <dtensor/error.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace dtensor::detail {

void refuse_file(const std::string& path, const std::string& why) {
  DTENSOR_CHECK_VALUE(
      false,
      "open_weights",
      path,
      ": ",
      why,
      ". Give a safetensors file, the index of several, a GGUF file, or an "
      "exported program.");
}

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat about {};
  if (file < 0 || ::fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
    const std::string why = file < 0 ? std::strerror(errno) : "is no file";
    if (file >= 0) {
      ::close(file);
    }
    refuse_file(path_, why);
  }
  size_ = static_cast<size_t>(about.st_size);
  void* mapped = size_ == 0
      ? nullptr
      : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
  const std::string why = std::strerror(errno);
  ::close(file);
  if (mapped == MAP_FAILED) {
    refuse_file(path_, "cannot be mapped: " + why);
  }
  data_ = static_cast<const std::byte*>(mapped);
}

void MappedFile::forget(const std::byte* begin, size_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(begin);
  const auto from = (first + page - 1) / page * page;
  const auto to = (first + bytes) / page * page;
  if (from < to) {
    ::madvise(
        const_cast<std::byte*>(begin) + (from - first),
        to - from,
        MADV_DONTNEED);
  }
}

void MappedFile::read_ahead(const std::byte* begin, size_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto rest = reinterpret_cast<uintptr_t>(begin) % page;
  if (bytes > 0) {
    ::madvise(
        const_cast<std::byte*>(begin) - rest, bytes + rest, MADV_WILLNEED);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

} // namespace dtensor::detail
