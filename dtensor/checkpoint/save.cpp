// SPDX-License-Identifier: BSD-3-Clause
// Preparation of a save: selects the elements that this rank writes, and copies
// them if training continues during the save.
#include <dtensor/checkpoint/async_saver.h>
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/checkpoint/save_run_impl.h>
#include <dtensor/checkpoint/saved_tensors_impl.h>
#include <dtensor/checkpoint/write_plan_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace dtensor {
namespace {

using detail::kSaveCheckpoint;
using detail::SavedTensor;

int64_t position_in(const Group& group, int64_t rank, const SavedTensor& of) {
  const auto& ranks = group.ranks();
  const auto found = std::ranges::find(ranks, rank);
  DTENSOR_CHECK_VALUE(
      found != ranks.end(),
      "[save_checkpoint] \"{}\" is also on rank {}, which is not in the group "
      "that saves. Pass a group with all ranks of its mesh.",
      of.name,
      rank);
  return found - ranks.begin();
}

void check_can_be_saved(const SavedTensor& item) {
  const auto& t = item.tensor;
  DTENSOR_CHECK_VALUE(
      t.defined() && !t.is_meta(),
      "[save_checkpoint] \"{}\"{}, and has no values. Materialize it first.",
      item.name,
      t.defined() ? " is on the meta device" : " is undefined");
  DTENSOR_CHECK_VALUE(
      detail::dtype_name(t.scalar_type()) != nullptr,
      "[save_checkpoint] \"{}\" is {}, a dtype that safetensors does not "
      "support. {} first.",
      item.name,
      shape_text(t.scalar_type(), t.sizes()),
      t.is_complex() ? "Save view_as_real() of it, or convert it"
                     : "Convert it");
  DTENSOR_CHECK_VALUE(
      (is_dtensor(t) ? detail::local_of(t) : t).layout() == at::kStrided,
      "[save_checkpoint] \"{}\" is sparse, which safetensors does not support. "
      "Make it dense, or save its indices and values.",
      item.name);
  DTENSOR_CHECK_VALUE(
      !is_dtensor(t) || !detail::spec_of(t)->has_partial(),
      "[save_checkpoint] cannot save a Partial tensor: \"{}\" is {}. "
      "Redistribute it first.",
      item.name,
      is_dtensor(t) ? to_string(*detail::spec_of(t)) : "");
}

// Returns the positions in the group of the ranks that hold a tensor, in the
// order of its mesh.
std::vector<int64_t> holders(const SavedTensor& item, const Group& group) {
  std::vector<int64_t> ranks;
  if (!is_dtensor(item.tensor)) {
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      ranks.push_back(rank);
    }
    return ranks;
  }
  for (const auto rank : detail::spec_of(item.tensor)->mesh().ranks()) {
    ranks.push_back(position_in(group, rank, item));
  }
  return ranks;
}

using Meshes = std::vector<std::vector<int64_t>>;

detail::HeldTensor held(const SavedTensor& item, Meshes meshes) {
  const auto& t = item.tensor;
  detail::HeldTensor result;
  result.dtype = t.scalar_type();
  result.sizes.assign(t.sizes().begin(), t.sizes().end());
  if (is_dtensor(t)) {
    const auto& spec = *detail::spec_of(t);
    result.mesh_shape = spec.mesh().shape().vec();
    result.placements.assign(
        spec.placements().begin(), spec.placements().end());
  } else {
    result.mesh_shape = {static_cast<int64_t>(meshes[0].size())};
    result.placements = {Replicate()};
  }
  result.meshes = std::move(meshes);
  return result;
}

// Returns the elements of a tensor that the box selects.
at::Tensor box_of(const SavedTensor& item, const detail::WrittenBox& box) {
  auto part =
      is_dtensor(item.tensor) ? detail::local_of(item.tensor) : item.tensor;
  part = part.detach();
  if (numel(box.sizes) == 0) {
    return at::empty(box.sizes, item.tensor.scalar_type());
  }
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    part = part.narrow(
        static_cast<int64_t>(d), box.local_offsets[d], box.sizes[d]);
  }
  return part;
}

// Tensors to save, and their meshes. Tensor i lies on meshes[mesh_of[i]]. On
// other ranks, the mesh with the same number may have other members.
struct Prepared {
  std::vector<SavedTensor> tensors;
  std::map<std::string, std::string> tied;
  std::vector<std::string> lines;
  std::vector<std::vector<int64_t>> meshes;
  std::vector<size_t> mesh_of;
  detail::ComparedValues compared;

  Prepared(
      const std::string& path,
      const CheckpointState& state,
      const SaveOptions& options,
      const Group& group) {
    auto saved = detail::saved_tensors(state);
    tensors = std::move(saved.tensors);
    tied = saved.tied.firsts();
    lines.push_back(
        options.full
            ? detail::format_text(
                  "{} in full, {} bytes a file", path, options.max_file_bytes)
            : path + " in shards");
    for (const auto& item : tensors) {
      add_mesh_of(item, group);
    }
    for (const auto& [name, first] : tied) {
      lines.push_back(detail::format_text("\"{}\" is \"{}\"", name, first));
    }
    compared = detail::compared_values(
        tensors, state.extra == nullptr ? CheckpointExtra{} : *state.extra);
    lines.insert(lines.end(), compared.names.begin(), compared.names.end());
  }

  // Returns JSON with this rank's meshes and digests for the other ranks.
  std::string text() const {
    return nlohmann::json{{"meshes", meshes}, {"digests", compared.digests}}
        .dump();
  }

 private:
  void add_mesh_of(const SavedTensor& item, const Group& group) {
    check_can_be_saved(item);
    const auto ranks = holders(item, group);
    const auto known = std::ranges::find(meshes, ranks);
    mesh_of.push_back(static_cast<size_t>(known - meshes.begin()));
    if (known == meshes.end()) {
      meshes.push_back(ranks);
    }
    lines.push_back(detail::format_text(
        "\"{}\" {} on mesh {}",
        item.name,
        detail::state_text(item.tensor),
        mesh_of.back()));
  }
};

// Returns the names of tensors that only rank 0 writes, because their values
// differ between ranks.
std::vector<std::string> different_names(
    const Prepared& prepared,
    const std::vector<nlohmann::json>& theirs,
    const SaveOptions& options) {
  std::vector<std::vector<std::string>> digests;
  for (const auto& other : theirs) {
    digests.push_back(other.at("digests").get<std::vector<std::string>>());
  }
  return detail::names_that_differ(
      prepared.compared.names, digests, options.allow_differences);
}

// Returns the layouts of all tensors. Each rank has only its own meshes, so
// `theirs` contains the text() of every rank.
std::vector<detail::HeldTensor> layouts_of(
    const Prepared& prepared,
    const std::vector<nlohmann::json>& theirs,
    const std::vector<std::string>& different) {
  std::vector<Meshes> alike(prepared.meshes.size());
  for (const auto& other : theirs) {
    const auto& meshes = other.at("meshes");
    for (size_t i = 0; i < alike.size(); ++i) {
      auto ranks = meshes.at(i).get<std::vector<int64_t>>();
      if (std::ranges::find(alike[i], ranks) == alike[i].end()) {
        alike[i].push_back(std::move(ranks));
      }
    }
  }
  std::vector<detail::HeldTensor> layouts;
  for (size_t i = 0; i < prepared.tensors.size(); ++i) {
    const auto& item = prepared.tensors[i];
    const bool differs = !is_dtensor(item.tensor) &&
        std::ranges::find(different, item.name) != different.end();
    layouts.push_back(
        held(item, differs ? Meshes{{0}} : alike[prepared.mesh_of[i]]));
  }
  return layouts;
}

// Adds the elements that this rank writes, or copies of them.
void add_tensors(
    detail::SaveTask& task,
    const std::vector<detail::WrittenBox>& boxes,
    const Prepared& prepared,
    detail::StagingBuffer* staging) {
  std::vector<detail::WrittenBox> mine;
  std::vector<at::Tensor> values; // one per box
  for (const auto& box : boxes) {
    if (box.rank == task.rank) {
      mine.push_back(box);
      values.push_back(box_of(prepared.tensors[box.tensor], box));
    }
  }
  if (staging != nullptr) {
    staging->copy(values);
  }
  for (size_t i = 0; i < mine.size(); ++i) {
    const auto& item = prepared.tensors[mine[i].tensor];
    task.tensors[static_cast<size_t>(mine[i].file)].push_back(
        {item.name,
         item.tensor.scalar_type(),
         mine[i].offsets,
         mine[i].sizes,
         detail::rows_of(values[i])});
  }
}

// Builds the task of this rank's thread.
detail::SaveTask task_of(
    const std::string& path,
    const CheckpointState& state,
    const SaveOptions& options,
    const Group& group,
    const Prepared& prepared,
    const std::vector<detail::HeldTensor>& layouts,
    detail::StagingBuffer* staging) {
  const auto plan = detail::plan_writes(layouts, group.size());
  detail::SaveTask task;
  task.path = path;
  task.folder = detail::folder_of_save(path);
  task.rank = group.rank();
  task.ranks = group.size();
  task.files = plan.files;
  task.extra = detail::extra_text(
      state.extra == nullptr ? CheckpointExtra{} : *state.extra, prepared.tied);
  task.tied = prepared.tied;
  task.full = options.full;
  task.max_file_bytes = options.max_file_bytes;
  task.overwrite = options.overwrite;
  task.timeout = options.timeout;
  task.tensors.resize(static_cast<size_t>(task.files));
  add_tensors(task, plan.boxes, prepared, staging);
  if (task.rank == 0) {
    task.lock = detail::make_folder_of_save(path, options.overwrite);
  }
  return task;
}

std::unique_ptr<detail::SaveRun> begin_save(
    const std::string& path,
    const CheckpointState& state,
    const SaveOptions& options,
    Group& group,
    detail::StagingBuffer* staging) {
  const c10::NoGradGuard no_grad;
  const auto what = path + " was not saved. ";
  std::optional<Prepared> prepared;
  const auto error =
      detail::error_in([&] { prepared.emplace(path, state, options, group); });
  detail::check_none_failed(group, error, what, kSaveCheckpoint);
  std::vector<nlohmann::json> theirs;
  for (const auto& text : detail::check_same_on_all_ranks(
           group, prepared->lines, prepared->text(), kSaveCheckpoint)) {
    theirs.push_back(nlohmann::json::parse(text));
  }
  const auto layouts = layouts_of(
      *prepared, theirs, different_names(*prepared, theirs, options));
  detail::SaveTask task;
  const auto refused = detail::error_in([&] {
    task = task_of(path, state, options, group, *prepared, layouts, staging);
  });
  const auto failed = detail::error_in([&] {
    detail::check_none_failed(group, refused, what, kSaveCheckpoint);
  });
  if (failed != nullptr) {
    if (task.lock != nullptr) {
      detail::remove_folder(task.folder);
    }
    std::rethrow_exception(failed);
  }
  return std::make_unique<detail::SaveRun>(std::move(task));
}

} // namespace

void save_checkpoint(
    const std::string& path,
    const CheckpointState& state,
    const SaveOptions& options) {
  const auto group = detail::group_or_world(options.group);
  begin_save(path, state, options, *group, nullptr)->finish(*group);
}

struct AsyncSaver::State {
  detail::StagingBuffer staging;
  GroupPtr group;
  std::unique_ptr<detail::SaveRun> run;
};

AsyncSaver::AsyncSaver() : state_(std::make_unique<State>()) {}
AsyncSaver::~AsyncSaver() = default;

void AsyncSaver::save(
    const std::string& path,
    const CheckpointState& state,
    const SaveOptions& options) {
  wait();
  state_->group = detail::group_or_world(options.group);
  state_->run =
      begin_save(path, state, options, *state_->group, &state_->staging);
}

void AsyncSaver::wait() {
  if (state_->run != nullptr) {
    const auto run = std::exchange(state_->run, nullptr);
    run->finish(*state_->group);
  }
}

} // namespace dtensor
