// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/open_checkpoint_impl.h>

#include <dtensor/checkpoint/saved_tensors_impl.h>
#include <dtensor/weights/weight_contents_impl.h>

#include <string_view>
#include <vector>

namespace dtensor::detail {
namespace {

// Returns true if `name` is a tensor of `extra`, as far as checkpoint.json
// records.
bool is_extra(const Manifest& manifest, const std::string& name) {
  if (!name.starts_with(kExtraPrefix)) {
    return false;
  }
  const auto key = name.substr(std::string_view(kExtraPrefix).size());
  return !manifest.extra_tensors || manifest.extra_tensors->count(key) > 0;
}

} // namespace

const WeightInfo* OpenedCheckpoint::find(const std::string& name) const {
  return file == nullptr ? nullptr : file->find(name);
}

std::string OpenedCheckpoint::stored_name(const std::string& name) const {
  if (find(name) != nullptr || file == nullptr) {
    return name;
  }
  if (manifest) {
    const auto found = manifest->tied.find(name);
    if (found != manifest->tied.end() && find(found->second) != nullptr) {
      return found->second;
    }
  }
  return detail::stored_name(*file, name);
}

bool OpenedCheckpoint::is_non_model_state(const std::string& name) const {
  const std::string optimizer = kOptimizerPrefix;
  return name.starts_with(optimizer + "state.") ||
      name.starts_with(optimizer + "param_groups.") ||
      (manifest && is_extra(*manifest, name));
}

OpenedCheckpoint open_checkpoint(const std::string& path) {
  OpenedCheckpoint opened;
  opened.manifest = read_manifest(path);
  if (!opened.manifest) {
    opened.file = open_weights(path);
    return opened;
  }
  std::vector<std::string> names;
  for (const auto& item : opened.manifest->files) {
    names.push_back(item.first);
  }
  if (!names.empty()) {
    opened.file = open_weight_files(path, names);
  }
  return opened;
}

} // namespace dtensor::detail
