// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/context_parallel.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/attention_tokens_impl.h>
#include <dtensor/parallel/context_scope_impl.h>
#include <dtensor/tensor/is_dtensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/WrapDimMinimal.h>

namespace dtensor {
namespace detail {
namespace {

constexpr const char* kUnshard = "context_parallel_unshard";

void check_part_of(
    const at::Tensor& whole,
    const at::Tensor& part,
    int64_t dim,
    const Intervals& tokens) {
  DTENSOR_CHECK_VALUE(
      part.size(dim) == total_size(tokens),
      "[{}] a local shard has {} tokens along dimension {}, but in a scope "
      "this rank has {} of {}. Pass the local shard of each rank of the mesh.",
      kUnshard,
      part.size(dim),
      dim,
      total_size(tokens),
      whole.size(dim));
}

// Gathers all shards. After a balanced scope, restores the order of the
// sequence: `order` lists the position of each gathered token, `places` is its
// inverse.
at::Tensor
unsharded(const DeviceMesh& mesh, const at::Tensor& part, int64_t dim) {
  Group& group = get_group(mesh);
  auto parts = group.all_gather(part, dim);
  const auto tokens =
      tokens_of_ranks(parts.size(dim), group.size(), was_balanced(mesh));
  check_part_of(parts, part, dim, tokens[static_cast<size_t>(group.rank())]);
  if (!was_balanced(mesh)) {
    return parts;
  }
  const auto order = order_of(tokens);
  std::vector<int64_t> places(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    places[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return parts.index_select(
      dim, at::tensor(places, at::kLong).to(parts.device()));
}

void check_unshard(
    const std::vector<at::Tensor>& buffers,
    const std::vector<int64_t>& seq_dims) {
  DTENSOR_CHECK_VALUE(
      buffers.size() == seq_dims.size(),
      "[{}] got {} buffers and {} seq_dims. Pass one dimension per buffer.",
      kUnshard,
      buffers.size(),
      seq_dims.size());
  for (const auto& buffer : buffers) {
    DTENSOR_CHECK_VALUE(
        buffer.defined(),
        "[{}] a local tensor is undefined. Pass a tensor on every rank.",
        kUnshard);
    DTENSOR_CHECK_TYPE(
        !is_dtensor(buffer),
        "[{}] expected a local tensor, got a DTensor. Pass its to_local(), or "
        "call full_tensor() if its tokens are in order.",
        kUnshard);
  }
}

} // namespace
} // namespace detail

std::vector<at::Tensor> context_parallel_unshard(
    const DeviceMesh& mesh,
    const std::vector<at::Tensor>& buffers,
    const std::vector<int64_t>& seq_dims) {
  const c10::NoGradGuard no_grad;
  detail::check_context_mesh(detail::kUnshard, mesh);
  detail::check_unshard(buffers, seq_dims);
  std::vector<at::Tensor> wholes;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto dim =
        detail::seq_dim(detail::kUnshard, buffers[i], i, seq_dims[i]);
    wholes.push_back(detail::unsharded(mesh, buffers[i].detach(), dim));
  }
  return wholes;
}

} // namespace dtensor
