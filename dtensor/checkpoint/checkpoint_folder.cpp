// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/checkpoint_folder.h>

#include <dtensor/checkpoint/files_impl.h>
#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/comm/world.h>
#include <dtensor/error.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace dtensor {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRemoved = ".removed";
constexpr const char* kSaving = ".saving";

// The number that a name ends in.
std::optional<uint64_t> number_of(const std::string& name) {
  const auto last = name.find_last_not_of("0123456789");
  const auto begin = last == name.npos ? 0 : last + 1;
  uint64_t number = 0;
  const auto* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + begin, end, number);
  return begin < name.size() && read.ec == std::errc() ? std::optional(number)
                                                       : std::nullopt;
}

// By number, the smallest first.
std::vector<fs::path> checkpoints_in(const std::string& folder) {
  std::vector<std::pair<uint64_t, fs::path>> found;
  std::error_code none; // others may be removing some
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const auto number = number_of(entry.path().filename().string());
    if (number && fs::exists(entry.path() / detail::kManifest, none)) {
      found.emplace_back(*number, entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& item : found) {
    paths.push_back(std::move(item.second));
  }
  return paths;
}

// It has no name before a part of it is gone.
void remove_checkpoint(const fs::path& path) {
  std::error_code ignored;
  const auto hidden =
      path.parent_path() / ("." + path.filename().string() + kRemoved);
  detail::remove_folder(hidden.string());
  fs::rename(path, hidden, ignored);
  detail::remove_folder(hidden.string());
}

void remove_leftovers(const std::string& folder) {
  std::vector<fs::path> left;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with(".") &&
        (name.ends_with(kRemoved) ||
         (name.ends_with(kSaving) &&
          detail::FolderLock(entry.path().string()).is_held()))) {
      left.push_back(entry.path());
    }
  }
  for (const auto& path : left) {
    detail::remove_folder(path.string());
  }
}

} // namespace

std::optional<std::string> latest_checkpoint(const std::string& folder) {
  const auto all = checkpoints_in(folder);
  return all.empty() ? std::nullopt : std::optional(all.back().string());
}

void keep_last(const std::string& folder, int64_t count) {
  DTENSOR_CHECK_VALUE(
      count >= 1,
      "keep_last",
      "the number of checkpoints must be positive: ",
      count,
      ". Keep at least 1.");
  if (get_rank() != 0) {
    return;
  }
  const auto all = checkpoints_in(folder);
  const auto kept = std::min(all.size(), static_cast<size_t>(count));
  for (size_t i = 0; i + kept < all.size(); ++i) {
    remove_checkpoint(all[i]);
  }
  remove_leftovers(folder);
}

} // namespace dtensor
