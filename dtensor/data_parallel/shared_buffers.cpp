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
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>
#include <utility>

namespace dtensor {
namespace detail {
namespace {

// Returns the local tensor of a buffer.
at::Tensor local_of_buffer(const at::Tensor& buffer) {
  return is_dtensor(buffer) ? local_of(buffer) : buffer;
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
    std::vector<GroupPtr> groups,
    const torch::nn::Module& module)
    : groups_(std::move(groups)) {
  for (const auto& buffer : module.buffers()) {
    if (buffer.defined()) {
      buffers_.emplace_back(buffer.getIntrusivePtr());
    }
  }
}

void SharedBuffers::share() const {
  const c10::NoGradGuard no_grad;
  const ModuleScope scope("buffers");
  std::vector<at::Tensor> locals;
  for (const auto& weak : buffers_) {
    if (auto impl = weak.lock()) {
      const auto local = local_of_buffer(at::Tensor(std::move(impl)));
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

} // namespace detail

void broadcast_buffers(
    const torch::nn::Module& module,
    const DeviceMesh& mesh) {
  detail::SharedBuffers(
      get_all_groups(detail::mesh_or_current(mesh, "broadcast_buffers")),
      module)
      .share();
}

} // namespace dtensor
