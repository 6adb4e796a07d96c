// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/shared_memory/shared_segment_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/error.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <string>
#include <system_error>

namespace dtensor::detail {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::string last_error() {
  return std::system_category().message(errno);
}

// Returns the limit on file sizes, which applies to shared memory too. Growing
// beyond it raises SIGXFSZ.
rlim_t file_size_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// Returns the reason why the open file is not a segment of this library; "" if
// it is one.
std::string objection(int descriptor, size_t bytes) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) {
    return last_error();
  }
  if (status.st_uid != geteuid()) {
    return c10::str("it belongs to user ", status.st_uid);
  }
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return "it is not sealed memory";
  }
  if (status.st_size != static_cast<off_t>(bytes)) {
    return detail::format_text(
        "it has {} bytes, not {}", status.st_size, bytes);
  }
  return "";
}

} // namespace

SharedSegment::SharedSegment(int descriptor, size_t bytes)
    : descriptor_(descriptor),
      size_(bytes),
      data_(nullptr, Unmap{bytes}) {}

void SharedSegment::Unmap::operator()(std::byte* data) const {
  munmap(data, size);
}

SharedSegment SharedSegment::create(size_t bytes) {
  // The name is shown in /proc/PID/maps.
  SharedSegment result(
      memfd_create("dtensor", MFD_CLOEXEC | MFD_ALLOW_SEALING), bytes);
  DTENSOR_CHECK(
      bytes <= file_size_limit(),
      "[shared_memory_backend] cannot make {} bytes of shared memory: the file "
      "size limit is {}. Raise that limit (ulimit -f), or use another backend.",
      bytes,
      file_size_limit());
  const int descriptor = result.descriptor();
  const bool made = descriptor >= 0 &&
      fchmod(descriptor, S_IRUSR | S_IWUSR) == 0 &&
      ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 &&
      fcntl(descriptor, F_ADD_SEALS, kSeals) == 0;
  DTENSOR_CHECK(
      made,
      "[shared_memory_backend] cannot make {} bytes of shared memory: {}. "
      "Raise the limits of this process, or use another backend.",
      bytes,
      last_error());
  result.map();
  return result;
}

SharedSegment
SharedSegment::open(int64_t pid, int64_t descriptor, size_t bytes) {
  const std::string path =
      detail::format_text("/proc/{}/fd/{}", pid, descriptor);
  SharedSegment result(::open(path.c_str(), O_RDWR | O_CLOEXEC), bytes);
  DTENSOR_CHECK(
      result.descriptor() >= 0,
      "[shared_memory_backend] cannot open the memory of process {}, {}: {}. "
      "Run ranks that share memory as processes of one user that see each "
      "other in /proc, or use another backend.",
      pid,
      path,
      last_error());
  const std::string why = objection(result.descriptor(), bytes);
  DTENSOR_CHECK(
      why.empty(),
      "[shared_memory_backend] the segment of process {} at {} is not the "
      "memory of this group: {}. Run the same program on all ranks.",
      pid,
      path,
      why);
  result.map();
  result.close_descriptor();
  return result;
}

void SharedSegment::map() {
  void* const address =
      mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor(), 0);
  DTENSOR_CHECK(
      address != MAP_FAILED,
      "[shared_memory_backend] cannot map {} bytes of shared memory: {}. Raise "
      "the limits of this process, or use another backend.",
      size_,
      last_error());
  data_.reset(static_cast<std::byte*>(address));
}

} // namespace dtensor::detail
