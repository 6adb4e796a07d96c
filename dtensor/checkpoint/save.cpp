// SPDX-License-Identifier: BSD-3-Clause
// What a rank does before its thread writes: which elements are its own, and,
// where training goes on beside, a copy of them.
#include <dtensor/checkpoint/async_saver.h>
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/checkpoint/copy_room_impl.h>
#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/checkpoint/save_run_impl.h>
#include <dtensor/checkpoint/saved_tensors_impl.h>
#include <dtensor/checkpoint/write_plan_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace dtensor {
namespace {

using detail::kSaveCheckpoint;
using detail::SavedTensor;

int64_t position_in(const Group& group, int64_t rank, const SavedTensor& of) {
  const auto& ranks = group.ranks();
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  DTENSOR_CHECK_VALUE(
      found != ranks.end(),
      kSaveCheckpoint,
      of.name,
      " lies on rank ",
      rank,
      " too, which is not in the group that saves. Pass a group with all ranks "
      "of its mesh.");
  return found - ranks.begin();
}

void check_can_be_saved(const SavedTensor& item) {
  const auto& t = item.tensor;
  DTENSOR_CHECK_VALUE(
      t.defined() && !t.is_meta(),
      kSaveCheckpoint,
      item.name,
      t.defined() ? " is on the meta device" : " is undefined",
      ", and has no values. Materialize it first.");
  DTENSOR_CHECK_VALUE(
      detail::dtype_name(t.scalar_type()) != nullptr,
      kSaveCheckpoint,
      item.name,
      " is ",
      shape_text(t.scalar_type(), t.sizes()),
      ", a dtype that safetensors does not have. Convert it first.");
  DTENSOR_CHECK_VALUE(
      !is_dtensor(t) || !detail::spec_of(t)->has_partial(),
      kSaveCheckpoint,
      item.name,
      " is ",
      is_dtensor(t) ? to_string(*detail::spec_of(t)) : "",
      ", a sum of which no rank has a part. Redistribute it first.");
}

detail::HeldTensor held(const SavedTensor& item, const Group& group) {
  const auto& t = item.tensor;
  detail::HeldTensor result;
  result.dtype = t.scalar_type();
  result.sizes.assign(t.sizes().begin(), t.sizes().end());
  if (!is_dtensor(t)) {
    result.mesh_shape = {group.size()};
    result.placements = {Replicate()};
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      result.ranks.push_back(rank);
    }
    return result;
  }
  const auto& spec = *detail::spec_of(t);
  result.mesh_shape = spec.mesh().shape().vec();
  result.placements.assign(spec.placements().begin(), spec.placements().end());
  for (const auto rank : spec.mesh().ranks()) {
    result.ranks.push_back(position_in(group, rank, item));
  }
  return result;
}

std::string line_of(const SavedTensor& item) {
  const auto& t = item.tensor;
  return item.name + " " +
      (is_dtensor(t) ? to_string(*detail::spec_of(t)) + " of ranks " +
               c10::Join(" ", detail::spec_of(t)->mesh().ranks())
                     : shape_text(t.scalar_type(), t.sizes()));
}

// What this rank writes of a tensor.
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

// What is this rank's to write, and all that it follows from.
struct Prepared {
  std::vector<SavedTensor> tensors;
  std::vector<std::string> lines;
  std::vector<detail::WrittenBox> mine;
  detail::SaveTask task;
};

Prepared prepare(
    const std::string& path,
    const CheckpointState& state,
    const SaveOptions& options,
    const Group& group) {
  Prepared prepared;
  prepared.tensors = detail::saved_tensors(state, kSaveCheckpoint);
  std::vector<detail::HeldTensor> layouts;
  prepared.lines = {path + (options.full ? " in full" : " in parts")};
  for (const auto& item : prepared.tensors) {
    check_can_be_saved(item);
    layouts.push_back(held(item, group));
    prepared.lines.push_back(line_of(item));
  }
  const auto plan = detail::plan_writes(layouts, group.size());
  auto& task = prepared.task;
  task.path = path;
  task.folder = detail::folder_of_save(path);
  task.rank = group.rank();
  task.ranks = group.size();
  task.files = plan.files;
  task.extra = state.extra == nullptr ? "{}" : detail::extra_text(*state.extra);
  task.full = options.full;
  task.max_file_bytes = options.max_file_bytes;
  task.overwrite = options.overwrite;
  task.timeout = options.timeout;
  for (const auto& box : plan.boxes) {
    if (box.rank == group.rank()) {
      prepared.mine.push_back(box);
    }
  }
  if (group.rank() == 0) {
    task.lock = detail::make_folder_of_save(path, options.overwrite);
  }
  return prepared;
}

std::unique_ptr<detail::SaveRun> begin_save(
    const std::string& path,
    const CheckpointState& state,
    const SaveOptions& options,
    Group& group,
    detail::CopyRoom* room) {
  const c10::NoGradGuard no_grad;
  Prepared prepared;
  std::vector<at::Tensor> values;
  const auto error = detail::error_in([&] {
    prepared = prepare(path, state, options, group);
    for (const auto& box : prepared.mine) {
      values.push_back(box_of(prepared.tensors[box.tensor], box));
    }
    if (room != nullptr) {
      room->copy(values);
    }
  });
  const auto failed = detail::error_in([&] {
    detail::check_none_failed(
        group, error, path + " was not saved. ", kSaveCheckpoint);
    detail::check_all_alike(group, prepared.lines, kSaveCheckpoint);
  });
  if (failed != nullptr) {
    if (prepared.task.lock != nullptr) {
      detail::remove_folder(prepared.task.folder);
    }
    std::rethrow_exception(failed);
  }
  auto& task = prepared.task;
  task.tensors.resize(static_cast<size_t>(task.files));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& box = prepared.mine[i];
    const auto& item = prepared.tensors[box.tensor];
    task.tensors[static_cast<size_t>(box.file)].push_back(
        {item.name,
         item.tensor.scalar_type(),
         box.offsets,
         box.sizes,
         detail::rows_of(values[i])});
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
  detail::CopyRoom room;
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
  state_->run = begin_save(path, state, options, *state_->group, &state_->room);
}

void AsyncSaver::wait() {
  if (state_->run != nullptr) {
    const auto run = std::exchange(state_->run, nullptr);
    run->finish(*state_->group);
  }
}

} // namespace dtensor
