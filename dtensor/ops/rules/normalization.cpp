// SPDX-License-Identifier: BSD-3-Clause
// Normalizations. Dimensions that are normalized together are unsharded. The
// other dimensions may be sharded; the gradients of weight and bias are then
// sums over ranks.
#include <dtensor/ops/rules/shapes_impl.h>

#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>

#include <algorithm>

namespace dtensor {

std::vector<OutputMeta> detail::norm_backward_meta(
    const OpCall& call,
    SizesRef parameter_sizes) {
  const auto mask = call.arg("output_mask").toBoolList();
  const auto& input = *call.input("input")->spec;
  const auto* weight = call.input("weight");
  const auto dtype = weight ? weight->spec->dtype() : input.dtype();
  const auto parameter = dense(parameter_sizes, dtype);
  return {
      mask[0] ? dense_like(input) : undefined(),
      mask[1] ? parameter : undefined(),
      mask[2] ? parameter : undefined()};
}

namespace {

using detail::dense;
using detail::dense_like;
using detail::dense_like_first;
using detail::norm_backward_meta;

// Returns the number of dimensions of `input` in front of the normalized
// dimensions.
int64_t leading_dims(const OpCall& call) {
  return call.input("input")->dim() -
      static_cast<int64_t>(call.ints_arg("normalized_shape").size());
}

// Returns one strategy for each of the first `dims` dimensions. The first
// `num_sharded` inputs are sharded along this dimension, and the others are
// replicated.
Strategies shard_leading_dims(
    const OpCall& call,
    int64_t dims,
    size_t num_sharded,
    const Placements& outputs_beyond_first = {}) {
  Strategies all;
  for (int64_t d = 0; d < dims; ++d) {
    Strategy s;
    s.inputs.resize(call.inputs.size(), Replicate());
    for (size_t i = 0; i < num_sharded; ++i) {
      s.inputs[i] = Shard(d);
    }
    s.outputs.push_back(Shard(d));
    s.outputs.append(outputs_beyond_first.begin(), outputs_beyond_first.end());
    s.outputs.resize(call.outputs.size(), Shard(d));
    all.push_back(std::move(s));
  }
  return all;
}

// Returns the strategies of the output alone, or of the output and statistics.
// Statistics have the leading dimensions.
Strategies layer_norm(const OpCall& call, int64_t) {
  return shard_leading_dims(call, leading_dims(call), 1);
}

// Returns the strategies for grad_out, input, mean, rstd, weight?, bias?.
Strategies layer_norm_backward(const OpCall& call, int64_t) {
  return shard_leading_dims(
      call,
      leading_dims(call),
      4,
      {Partial(ReduceOp::kSum), Partial(ReduceOp::kSum)});
}

at::ScalarType statistics_dtype(const OpCall& call) {
  const auto dtype = call.input("input")->spec->dtype();
  const auto* weight = call.input("weight");
  return weight != nullptr && dtype != at::kDouble ? weight->spec->dtype()
                                                   : dtype;
}

std::vector<OutputMeta> layer_norm_meta(const OpCall& call) {
  const auto& spec = *call.inputs[0].spec;
  Sizes statistics(spec.sizes().begin(), spec.sizes().end());
  const auto lead = static_cast<size_t>(leading_dims(call));
  std::fill(
      statistics.begin() + static_cast<std::ptrdiff_t>(lead),
      statistics.end(),
      1);
  const auto dtype = statistics_dtype(call);
  return {dense_like(spec), dense(statistics, dtype), dense(statistics, dtype)};
}

std::vector<OutputMeta> layer_norm_backward_meta(const OpCall& call) {
  return norm_backward_meta(call, call.ints_arg("normalized_shape"));
}

// --- group_norm: samples are independent ---------------------------------

Strategies group_norm(const OpCall& call, int64_t) {
  return shard_leading_dims(call, 1, 1);
}

// Returns the strategies for grad_out, input, mean, rstd, weight?.
Strategies group_norm_backward(const OpCall& call, int64_t) {
  return shard_leading_dims(
      call, 1, 4, {Partial(ReduceOp::kSum), Partial(ReduceOp::kSum)});
}

std::vector<OutputMeta> group_norm_meta(const OpCall& call) {
  const auto& spec = *call.inputs[0].spec;
  const Sizes statistics{call.int_arg("N"), call.int_arg("group")};
  const auto dtype = statistics_dtype(call);
  return {dense_like(spec), dense(statistics, dtype), dense(statistics, dtype)};
}

std::vector<OutputMeta> group_norm_backward_meta(const OpCall& call) {
  return norm_backward_meta(call, {call.int_arg("C")});
}

// Sets the argument N to the number of local samples.
void localize_samples(const OpCall& call, Decision& decision) {
  const auto i = static_cast<size_t>(call.input_index("input"));
  const auto& spec =
      decision.inputs[i] ? decision.inputs[i] : call.inputs[i].spec;
  decision.args.emplace_back(call.arg_index("N"), spec->local_sizes()[0]);
}

} // namespace

DTENSOR_RULES(normalization) {
  const BoundaryRole scaled{
      .kind = BoundaryKind::kNorm, .input = 0, .parameter = 2};
  rules.dim_rule("layer_norm", layer_norm)
      .with_meta(dense_like_first)
      .with_traits({.formula = true, .boundary = scaled});
  rules.dim_rule("rms_norm", layer_norm)
      .with_meta(dense_like_first)
      .with_traits({.boundary = scaled});
  rules.dim_rule("_fused_rms_norm", layer_norm);
  rules.dim_rule("native_layer_norm", layer_norm).with_meta(layer_norm_meta);
  rules.dim_rule("native_layer_norm_backward", layer_norm_backward)
      .with_meta(layer_norm_backward_meta);
  rules.dim_rule("group_norm", group_norm).with_meta(dense_like_first);
  rules.dim_rule("native_group_norm", group_norm)
      .with_meta(group_norm_meta)
      .with_localize(localize_samples);
  rules.dim_rule("native_group_norm_backward", group_norm_backward)
      .with_meta(group_norm_backward_meta)
      .with_localize(localize_samples);
}

} // namespace dtensor
