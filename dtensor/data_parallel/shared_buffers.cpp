// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/data_parallel/replication_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/flatten_dense_tensors.h>
#include <ATen/ops/unflatten_dense_tensors.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/comm/observer.h>
#include <dtensor/data_parallel/replicate.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/hook_list.h>
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>

namespace dtensor {
namespace detail {
namespace {

// Returns the position of a rank along the mesh dimensions that do not
// replicate the tensor, and 0 along other dimensions. Ranks in one position
// hold the same values. Nullopt: outside the mesh.
std::optional<std::vector<int64_t>> shard_position(
    const Spec& spec,
    int64_t rank) {
  const auto& ranks = spec.mesh().ranks();
  const auto found = std::ranges::find(ranks, rank);
  if (found == ranks.end()) {
    return std::nullopt;
  }
  auto position = spec.mesh().coordinate_of(found - ranks.begin());
  for (size_t m = 0; m < position.size(); ++m) {
    if (spec.placements()[m].is_replicate()) {
      position[m] = 0;
    }
  }
  return position;
}

// Returns true if the ranks of `group` in the mesh hold the same shard. Other
// ranks have tensors on other meshes.
bool have_same_shard(const Spec& spec, const Group& group) {
  std::optional<std::vector<int64_t>> first;
  return std::ranges::all_of(group.ranks(), [&](int64_t rank) {
    const auto position = shard_position(spec, rank);
    if (!first) {
      first = position;
    }
    return !position || position == first;
  });
}

bool can_be_sent(const at::Tensor& local) {
  return local.defined() && local.layout() == at::kStrided &&
      !local.is_meta() && local.numel() > 0;
}

// Groups tensors by dtype and device. Each group takes one broadcast.
std::vector<std::vector<at::Tensor>> buckets_of(
    const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<at::Tensor>> buckets;
  for (const auto& t : tensors) {
    const auto fits = [&](const auto& bucket) {
      return bucket[0].scalar_type() == t.scalar_type() &&
          bucket[0].device() == t.device();
    };
    const auto known = std::ranges::find_if(buckets, fits);
    if (known == buckets.end()) {
      buckets.push_back({t});
    } else {
      known->push_back(t);
    }
  }
  return buckets;
}

void broadcast_bucket(Group& group, const std::vector<at::Tensor>& bucket) {
  const auto all = group.broadcast(at::flatten_dense_tensors(bucket), 0);
  const auto values = at::unflatten_dense_tensors(all, bucket);
  for (size_t i = 0; i < bucket.size(); ++i) {
    if (!at::equal(bucket[i], values[i])) {
      bucket[i].copy_(values[i]);
    }
  }
}

} // namespace

SharedBuffers::SharedBuffers(
    const char* where,
    const DeviceMesh& mesh,
    const torch::nn::Module& module)
    : where_(where),
      mesh_(mesh),
      groups_(get_all_groups(mesh)) {
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) {
      buffers_.emplace_back(item.key(), item.value());
    }
  }
}

void SharedBuffers::check_layout(
    const std::string& name,
    const at::Tensor& buffer) const {
  if (!is_dtensor(buffer)) {
    return;
  }
  const auto& spec = *spec_of(buffer);
  DTENSOR_CHECK_VALUE(
      std::ranges::all_of(
          groups_,
          [&](const auto& group) { return have_same_shard(spec, *group); }),
      "[{}] buffer \"{}\" is {}, distributed over ranks of {}. Pass the mesh "
      "dimension along which buffers are replicated.",
      where_,
      name,
      spec,
      mesh_);
}

void SharedBuffers::share() const {
  const c10::NoGradGuard no_grad;
  const ModuleScope scope("buffers");
  std::vector<at::Tensor> locals;
  for (const auto& [name, weak] : buffers_) {
    if (auto impl = weak.lock()) {
      const at::Tensor buffer(std::move(impl));
      check_layout(name, buffer);
      const auto& local = is_dtensor(buffer) ? local_of(buffer) : buffer;
      if (can_be_sent(local)) {
        locals.push_back(local);
      }
    }
  }
  const auto buckets = buckets_of(locals);
  for (const auto& group : groups_) {
    for (const auto& bucket : buckets) {
      if (group->size() > 1) {
        broadcast_bucket(*group, bucket);
      }
    }
  }
}

void Replication::share_buffers(
    const DeviceMesh& mesh,
    torch::nn::Module& module) {
  shared_buffers_.emplace(kReplicate, mesh, module);
  shared_buffers_->share();
  auto* hooks = dynamic_cast<ModuleHooks*>(&module);
  if (hooks == nullptr) {
    return;
  }
  hooks->add_forward_pre_hook(
      [weak = weak_from_this()](const std::vector<at::Tensor*>&) {
        const auto alive = weak.lock();
        if (alive != nullptr && c10::GradMode::is_enabled()) {
          alive->begin_forward();
        }
      });
}

void Replication::begin_forward() {
  if (shared_buffers_ && requires_sync_ && buffers_may_differ_) {
    shared_buffers_->share();
  }
  buffers_may_differ_ = true;
}

} // namespace detail

void broadcast_buffers(
    const torch::nn::Module& module,
    const DeviceMesh& given) {
  constexpr const char* kWhere = "broadcast_buffers";
  const auto mesh = detail::mesh_or_current(given, kWhere);
  detail::SharedBuffers(kWhere, mesh, module).share();
}

} // namespace dtensor
