// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/inner_file_impl.h>

#include <dtensor/weights/json_document_impl.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <system_error>

namespace dtensor::detail {
namespace {

namespace fs = std::filesystem;

bool is_plain(const std::string& name) {
  const fs::path path(name);
  return !name.empty() && name.size() < PATH_MAX && path.is_relative() &&
      name.find('\0') == name.npos &&
      std::find(path.begin(), path.end(), "..") == path.end();
}

bool is_within(const fs::path& folder, const fs::path& file) {
  const auto end =
      std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  return end.first == folder.end() && end.second != file.end();
}

} // namespace

std::string problem_of_inner_file(
    const std::string& list,
    const std::string& name) {
  const auto quote = quoted_json(name);
  if (!is_plain(name)) {
    return quote + " is not a relative path within the folder";
  }
  std::error_code error;
  const auto given = fs::absolute(list, error).parent_path();
  const auto folder = fs::weakly_canonical(given, error);
  const auto home = fs::weakly_canonical(list, error).parent_path();
  const auto file = fs::weakly_canonical(given / name, error);
  if (error || is_within(folder, file) || is_within(home, file)) {
    return ""; // opening the file reports the error
  }
  return quote + " is a link to " + quoted_json(file.string()) +
      ", outside of the folder";
}

} // namespace dtensor::detail
