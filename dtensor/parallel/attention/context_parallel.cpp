// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/context_parallel.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/attention/attention_tokens_impl.h>
#include <dtensor/parallel/attention/context_attention_impl.h>
#include <dtensor/tensor/is_dtensor.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <map>

namespace dtensor {
namespace detail {
namespace {

struct ContextState {
  std::vector<const ContextScope*> open;
  RotateMethod method = RotateMethod::kAllGather;
  int64_t outside = 0;
  // Maps the ranks of a mesh to true if the scope on them that ended last was
  // balanced.
  std::map<std::vector<int64_t>, bool> balanced;
};

RankLocal<ContextState> context_state;

bool contains(const std::vector<at::Tensor>& list, const at::Tensor& tensor) {
  return std::ranges::any_of(
      list, [&](const at::Tensor& other) { return other.is_same(tensor); });
}

void check_buffer(const at::Tensor& buffer, size_t index) {
  DTENSOR_CHECK_VALUE(
      buffer.defined() && !is_dtensor(buffer) && !buffer.requires_grad(),
      "[context_parallel] buffer {}{}. Pass plain tensors that do not require "
      "grad.",
      index,
      buffer.defined() ? is_dtensor(buffer) ? " is a DTensor" : " requires grad"
                       : " is undefined");
}

void check_buffers(const ContextParallelOptions& options) {
  const auto& buffers = options.buffers;
  DTENSOR_CHECK_VALUE(
      buffers.size() == options.buffer_seq_dims.size(),
      "[context_parallel] got {} and {} buffer_seq_dims. Pass one dimension "
      "per buffer.",
      detail::pluralize(buffers.size(), "buffer"),
      options.buffer_seq_dims.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    check_buffer(buffers[i], i);
    const std::vector<at::Tensor> before(
        buffers.begin(), buffers.begin() + static_cast<int64_t>(i));
    DTENSOR_CHECK_VALUE(
        !contains(before, buffers[i]),
        "[context_parallel] buffer {} is in the list twice. Pass each buffer "
        "once.",
        i);
  }
  for (const auto& buffer : options.no_restore_buffers) {
    DTENSOR_CHECK_VALUE(
        contains(buffers, buffer),
        "[context_parallel] no_restore_buffers contains a tensor that is not "
        "in `buffers`. Pass a subset of `buffers`.");
  }
}

int64_t seq_dim_of(const ContextParallelOptions& options, size_t index) {
  return seq_dim(
      "context_parallel",
      options.buffers[index],
      index,
      options.buffer_seq_dims[index]);
}

std::optional<int64_t> length_of(const ContextParallelOptions& options) {
  std::optional<int64_t> length;
  for (size_t i = 0; i < options.buffers.size(); ++i) {
    const int64_t here = options.buffers[i].size(seq_dim_of(options, i));
    DTENSOR_CHECK_VALUE(
        length.value_or(here) == here,
        "[context_parallel] buffer 0 has {}, but buffer {} has {}. Pass "
        "buffers of the same sequence.",
        detail::pluralize(length.value_or(here), "token"),
        i,
        here);
    length = here;
  }
  return length;
}

// Returns the innermost open scope of this rank on the ranks of `mesh`, or
// null.
const ContextScope* open_scope_on(const DeviceMesh& mesh) {
  const auto& open = context_state.get().open;
  const auto found =
      std::find_if(open.rbegin(), open.rend(), [&](const ContextScope* scope) {
        return scope->mesh.ranks() == mesh.ranks();
      });
  return found == open.rend() ? nullptr : *found;
}

// Returns true if the scope's tokens are in balanced order. A scope without
// buffers keeps the order of the outer scope on the same ranks.
bool is_balanced(
    const DeviceMesh& mesh,
    const ContextParallelOptions& options,
    RotateMethod method) {
  const bool exchanges = method == RotateMethod::kUlysses;
  DTENSOR_CHECK_VALUE(
      !exchanges || !options.load_balance.value_or(false),
      "[context_parallel] load_balance is not supported with ulysses: every "
      "rank has all tokens of its heads. Leave it out, or use another "
      "rotate_method.");
  const auto* outer = open_scope_on(mesh);
  const bool keeps_balance =
      options.buffers.empty() && outer != nullptr && outer->balanced;
  DTENSOR_CHECK_VALUE(
      !exchanges || !keeps_balance,
      "[context_parallel] ulysses needs tokens in their order, but the "
      "enclosing scope balances them. Pass load_balance = false to the "
      "enclosing scope, or use another rotate_method.");
  return options.load_balance.value_or(
      !exchanges && (!options.buffers.empty() || keeps_balance));
}

// Replaces buffers by their shards. Computes all shards first, so that an error
// leaves no buffer replaced.
void shard_buffers(ContextScope& scope, const ContextParallelOptions& options) {
  const c10::NoGradGuard no_grad;
  const auto ranks = tokens_of_ranks(
      scope.length.value_or(0), scope.mesh.size(), scope.balanced);
  const auto& mine = ranks[static_cast<size_t>(scope.mesh.get_local_rank())];
  const auto positions = at::tensor(order_of({mine}), at::kLong);
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < options.buffers.size(); ++i) {
    const auto& buffer = options.buffers[i];
    parts.push_back(buffer.index_select(
        seq_dim_of(options, i), positions.to(buffer.device())));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& buffer = options.buffers[i];
    if (!contains(options.no_restore_buffers, buffer)) {
      scope.buffers.push_back({buffer, buffer.detach()});
    }
    buffer.set_data(parts[i]);
  }
}

constexpr const char* kUnshard = "context_parallel_unshard";

void check_part_of(
    const at::Tensor& unsharded,
    const at::Tensor& part,
    int64_t dim,
    const Intervals& tokens) {
  DTENSOR_CHECK_VALUE(
      part.size(dim) == total_size(tokens),
      "[{}] a local shard has {} along dimension {}, but in a scope this rank "
      "has {} of {}. Pass the local shard of each rank of the mesh.",
      kUnshard,
      detail::pluralize(part.size(dim), "token"),
      dim,
      total_size(tokens),
      unsharded.size(dim));
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
      "[{}] got {} and {} seq_dims. Pass one dimension per buffer.",
      kUnshard,
      detail::pluralize(buffers.size(), "buffer"),
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

const ContextScope* current_context() {
  const auto& state = context_state.get();
  return state.open.empty() || state.outside > 0 ? nullptr : state.open.back();
}

OutsideContext::OutsideContext() {
  ++context_state.get().outside;
}

OutsideContext::~OutsideContext() {
  --context_state.get().outside;
}

void check_context_mesh(const char* where, const DeviceMesh& mesh) {
  DTENSOR_CHECK_VALUE(
      mesh.defined() && mesh.ndim() == 1,
      "[{}] the mesh needs one dimension, got {}. Pass a slice of it, such as "
      "mesh[\"cp\"].",
      where,
      mesh.defined() ? to_string(mesh) : "none");
  DTENSOR_CHECK(
      mesh.contains_this_rank(),
      "[{}] rank {} is not in the mesh {}. Call it only on ranks of the mesh.",
      where,
      mesh.get_rank(),
      mesh);
}

int64_t seq_dim(
    const char* where,
    const at::Tensor& buffer,
    size_t index,
    int64_t dim) {
  DTENSOR_CHECK_INDEX(
      dim >= -buffer.dim() && dim < buffer.dim(),
      "[{}] buffer {}, {}, has no dimension {}. Pass its sequence dimension.",
      where,
      index,
      shape_text(buffer.scalar_type(), buffer.sizes()),
      dim);
  return c10::maybe_wrap_dim(dim, buffer.dim());
}

bool was_balanced(const DeviceMesh& mesh) {
  if (const auto* open = open_scope_on(mesh)) {
    return open->balanced;
  }
  const auto& known = context_state.get().balanced;
  const auto found = known.find(mesh.ranks());
  return found != known.end() && found->second;
}

} // namespace detail

// Performs all checks before any change.
ContextParallel::ContextParallel(
    const DeviceMesh& mesh,
    const ContextParallelOptions& options) {
  detail::check_context_mesh("context_parallel", mesh);
  detail::check_buffers(options);
  auto& state = detail::context_state.get();
  const auto method = options.rotate_method.value_or(state.method);
  scope_ = std::make_shared<detail::ContextScope>(detail::ContextScope{
      .mesh = mesh,
      .method = method,
      .balanced = detail::is_balanced(mesh, options, method),
      .length = detail::length_of(options)});
  detail::shard_buffers(*scope_, options);
  state.open.push_back(scope_.get());
  was_watched_ = detail::watch_attention(true);
}

ContextParallel::~ContextParallel() {
  detail::watch_attention(was_watched_);
  auto& state = detail::context_state.get();
  std::erase(state.open, scope_.get());
  state.balanced[scope_->mesh.ranks()] = scope_->balanced;
  const c10::NoGradGuard no_grad;
  for (const auto& [tensor, unsharded] : scope_->buffers) {
    tensor.set_data(unsharded);
  }
}

void set_rotate_method(std::string_view rotate_method) {
  static const std::map<std::string_view, RotateMethod> kMethods = {
      {"allgather", RotateMethod::kAllGather},
      {"alltoall", RotateMethod::kAllToAll},
      {"ulysses", RotateMethod::kUlysses}};
  const auto found = kMethods.find(rotate_method);
  DTENSOR_CHECK_VALUE(
      found != kMethods.end(),
      "[set_rotate_method] unknown rotate_method \"{}\". Pass allgather, "
      "alltoall or ulysses.",
      rotate_method);
  detail::context_state.get().method = found->second;
}

std::vector<at::Tensor> context_parallel_unshard(
    const DeviceMesh& mesh,
    const std::vector<at::Tensor>& buffers,
    const std::vector<int64_t>& seq_dims) {
  const c10::NoGradGuard no_grad;
  detail::check_context_mesh(detail::kUnshard, mesh);
  detail::check_unshard(buffers, seq_dims);
  std::vector<at::Tensor> full_tensors;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto dim =
        detail::seq_dim(detail::kUnshard, buffers[i], i, seq_dims[i]);
    full_tensors.push_back(detail::unsharded(mesh, buffers[i].detach(), dim));
  }
  return full_tensors;
}

} // namespace dtensor
