// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/record_folder_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/error.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace dtensor::detail {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void
fail(const std::string& what, const std::string& path, int wrong) {
  DTENSOR_THROW(
      "[flight record] {} \"{}\": {}. Set DTENSOR_FLIGHT_RECORD to a folder "
      "that this user can write, or to \"off\".",
      what,
      path,
      std::system_category().message(wrong));
}

Descriptor open_folder(const std::string& path, int more_flags) {
  return Descriptor(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | more_flags));
}

// Returns true if no other user can create, remove or link files in the open
// folder.
bool is_own(const Descriptor& folder) {
  struct stat status {};
  return folder.get() >= 0 && fstat(folder.get(), &status) == 0 &&
      status.st_uid == geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

} // namespace

RecordFolder::RecordFolder(Descriptor folder, std::string path)
    : folder_(std::move(folder)),
      path_(std::move(path)) {}

RecordFolder RecordFolder::of_user() {
  std::string path =
      (fs::temp_directory_path() / c10::str("dtensor-flight-", geteuid()))
          .string();
  mkdir(path.c_str(), S_IRWXU);
  Descriptor folder = open_folder(path, O_NOFOLLOW);
  if (!is_own(folder)) {
    path += "-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      fail("cannot make a folder", path, errno);
    }
    folder = open_folder(path, O_NOFOLLOW);
    if (!is_own(folder)) {
      fail("cannot open the folder", path, errno);
    }
  }
  return {std::move(folder), std::move(path)};
}

RecordFolder RecordFolder::named(const std::string& path) {
  std::error_code wrong;
  const fs::path parent = fs::path(path).parent_path();
  if (!parent.empty()) {
    fs::create_directories(parent, wrong);
  }
  mkdir(path.c_str(), S_IRWXU);
  Descriptor folder = open_folder(path, 0);
  if (folder.get() < 0) {
    fail("cannot open the folder", path, errno);
  }
  return {std::move(folder), path};
}

std::string RecordFolder::write(
    const std::string& name,
    const std::string& content) const {
  std::string path = (fs::path(path_) / name).string();
  // Removes an existing link or FIFO of that name; a link's target is not
  // affected.
  unlinkat(folder_.get(), name.c_str(), 0);
  const Descriptor file(openat(
      folder_.get(),
      name.c_str(),
      O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
      S_IRUSR | S_IWUSR));
  if (file.get() < 0) {
    fail("cannot make the file", path, errno);
  }
  for (size_t written = 0; written < content.size();) {
    const ssize_t now =
        ::write(file.get(), content.data() + written, content.size() - written);
    if (now < 0) {
      fail("cannot write the file", path, errno);
    }
    written += static_cast<size_t>(now);
  }
  return path;
}

} // namespace dtensor::detail
