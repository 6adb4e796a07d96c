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

// Returns the number at the end of a name.
std::optional<uint64_t> number_of(const std::string& name) {
  const auto last = name.find_last_not_of("0123456789");
  const auto begin = last == name.npos ? 0 : last + 1;
  uint64_t number = 0;
  const auto* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + begin, end, number);
  return begin < name.size() && read.ec == std::errc() ? std::optional(number)
                                                       : std::nullopt;
}

// Checkpoints with their numbers, sorted.
using Numbered = std::vector<std::pair<uint64_t, fs::path>>;

Numbered checkpoints_in(const std::string& folder) {
  Numbered found;
  std::error_code none;
  for (const auto& path : detail::entries_of(folder)) {
    const auto number = number_of(path.filename().string());
    if (number && fs::exists(path / detail::kManifest, none)) {
      found.emplace_back(*number, path);
    }
  }
  std::ranges::sort(found);
  return found;
}

// Returns true for a checkpoint of save_checkpoint(), and no symbolic link.
bool is_saved(const fs::path& path) {
  std::error_code none;
  return fs::is_directory(fs::symlink_status(path, none)) &&
      detail::is_checkpoint(path.string());
}

// Renames the checkpoint before removing it, so that an incomplete checkpoint
// is never visible.
void hide_and_remove(const fs::path& path) {
  std::error_code ignored;
  const auto hidden =
      path.parent_path() / ("." + path.filename().string() + kRemoved);
  if (detail::is_left_by_saver(hidden.string())) {
    detail::remove_checkpoint(hidden.string());
  }
  if (detail::is_there(hidden.string())) {
    return; // an unrelated entry has this name: keep the checkpoint
  }
  fs::rename(path, hidden, ignored);
  detail::remove_checkpoint(hidden.string());
}

void remove_leftovers(const std::string& folder) {
  for (const auto& path : detail::entries_of(folder)) {
    const auto name = path.filename().string();
    const bool is_removed = name.ends_with(kRemoved);
    if (!name.starts_with(".") || (!is_removed && !name.ends_with(kSaving)) ||
        !detail::is_left_by_saver(path.string())) {
      continue;
    }
    if (is_removed || detail::FolderLock(path.string()).is_held()) {
      detail::remove_checkpoint(path.string());
    }
  }
}

} // namespace

std::optional<std::string> latest_checkpoint(const std::string& folder) {
  const auto all = checkpoints_in(folder);
  return all.empty() ? std::nullopt : std::optional(all.back().second.string());
}

void keep_last(const std::string& folder, int64_t count) {
  DTENSOR_CHECK_VALUE(
      count >= 1,
      "[keep_last] the number of checkpoints must be positive: {}. Keep at "
      "least 1.",
      count);
  if (get_rank() != 0) {
    return;
  }
  auto all = checkpoints_in(folder);
  std::erase_if(all, [](const auto& item) { return !is_saved(item.second); });
  const auto kept = std::min(all.size(), static_cast<size_t>(count));
  for (size_t i = 0; i + kept < all.size(); ++i) {
    hide_and_remove(all[i].second);
  }
  remove_leftovers(folder);
}

} // namespace dtensor
