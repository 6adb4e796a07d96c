// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/removal_impl.h>

#include <dtensor/checkpoint/files_impl.h>
#include <dtensor/checkpoint/manifest_impl.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <dtensor/format_text.h>

#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace dtensor::detail {
namespace {

namespace fs = std::filesystem;

// Returns true for names of files that a save writes, including temporary
// names.
bool is_named_by_saver(std::string_view name) {
  constexpr std::string_view kNotYetNamed = ".new";
  struct Pattern {
    std::string_view begin;
    std::string_view end;
  };
  constexpr std::array<Pattern, 5> kPatterns = {
      {{"shard-", ".safetensors"},
       {"model", ".safetensors"},
       {"model", ".safetensors.index.json"},
       {"rank-", ".json"},
       {kManifest, ""}}};
  if (name.ends_with(kNotYetNamed)) {
    name.remove_suffix(kNotYetNamed.size());
  }
  for (const auto& [begin, end] : kPatterns) {
    if (end.empty() ? name == begin
                    : name.starts_with(begin) && name.ends_with(end)) {
      return true;
    }
  }
  return false;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error);
       !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    entries.push_back(entry->path());
  }
  return entries;
}

} // namespace

bool is_checkpoint(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return false;
  }
  try {
    return has_manifest(path);
  } catch (const c10::Error&) {
    return false;
  }
}

std::string problem_of_replacing(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return "exists and is not a checkpoint";
  }
  const bool is_empty = fs::is_empty(path, error);
  if (error) {
    return "cannot be listed: " + error.message();
  }
  if (is_empty || is_checkpoint(path)) {
    return "";
  }
  const bool is_damaged = fs::exists(fs::path(path) / kManifest, error);
  return is_damaged
      ? detail::format_text("exists, but its {} was modified", kManifest)
      : c10::str("exists and contains files but no ", kManifest);
}

bool is_left_by_saver(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(path, error))) {
    return false;
  }
  if (is_checkpoint(path)) {
    return true;
  }
  for (const auto& entry : entries_of(path)) {
    if (!is_named_by_saver(entry.filename().string()) ||
        !fs::is_regular_file(fs::symlink_status(entry, error))) {
      return false;
    }
  }
  return true;
}

void remove_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(fs::symlink_status(path, ignored))) {
    for (const auto& entry : entries_of(path)) {
      if (entry.filename() != kManifest) {
        fs::remove_all(entry, ignored);
      }
    }
  }
  remove_folder(path);
}

} // namespace dtensor::detail
