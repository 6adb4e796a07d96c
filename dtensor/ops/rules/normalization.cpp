// SPDX-License-Identifier: BSD-3-Clause
// Normalizations. Dimensions that are normalized together are unsharded. The
// other dimensions may be sharded; the gradients of weight and bias are then
// sums over ranks.
//
// In the training of a batch_norm, ranks that shard samples or spatial
// dimensions compute joint statistics. Channels are independent; for
// instance_norm, samples are independent, too.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <c10/core/ScalarType.h>

#include <algorithm>

namespace dtensor {
namespace {

using namespace detail;

// Returns the shapes of the gradients of input, weight and bias that
// output_mask selects.
std::vector<OutputMeta> norm_backward_meta(
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

// Returns the number of dimensions of `input` in front of the normalized
// dimensions.
int64_t leading_dims(const OpCall& call) {
  const auto& input = *call.input("input")->spec;
  const auto normalized = call.ints_arg("normalized_shape");
  const auto leading = input.dim() - static_cast<int64_t>(normalized.size());
  DTENSOR_CHECK(
      !normalized.empty() && leading >= 0 &&
          input.sizes().slice(static_cast<size_t>(leading)) ==
              SizesRef(normalized),
      "[{}] normalized_shape {} does not fit {}. Pass the sizes of the last "
      "dimensions.",
      call.name(),
      at::IntArrayRef(normalized),
      input);
  return leading;
}

// Returns the strategies of an output and its statistics, which have the first
// `dims` dimensions. Any of these may be sharded.
Strategies shard_leading_dims(const OpCall& call, int64_t dims) {
  Strategies all;
  for (int64_t d = 0; d < dims; ++d) {
    all.push_back(replicated_except(
        call, Placements(call.outputs.size(), Shard(d)), {{0, Shard(d)}}));
  }
  return all;
}

// Returns the strategies for grad_out, input, mean, rstd, weight?, bias?.
Strategies shard_leading_dims_backward(const OpCall& call, int64_t dims) {
  Strategies all;
  for (int64_t d = 0; d < dims; ++d) {
    all.push_back(replicated_except(
        call,
        {Shard(d), partial_sum(), partial_sum()},
        {{0, Shard(d)}, {1, Shard(d)}, {2, Shard(d)}, {3, Shard(d)}}));
  }
  return all;
}

Strategies layer_norm(const OpCall& call, int64_t) {
  return shard_leading_dims(call, leading_dims(call));
}

Strategies layer_norm_backward(const OpCall& call, int64_t) {
  return shard_leading_dims_backward(call, leading_dims(call));
}

at::ScalarType statistics_dtype(const OpCall& call) {
  const auto dtype = call.input("input")->spec->dtype();
  const auto* weight = call.input("weight");
  return weight != nullptr && dtype != at::kDouble ? weight->spec->dtype()
                                                   : dtype;
}

std::vector<OutputMeta> layer_norm_meta(const OpCall& call) {
  const auto& spec = *call.inputs[0].spec;
  Sizes statistics(spec.sizes());
  std::fill(statistics.begin() + leading_dims(call), statistics.end(), 1);
  const auto dtype = statistics_dtype(call);
  return {dense_like(spec), dense(statistics, dtype), dense(statistics, dtype)};
}

std::vector<OutputMeta> layer_norm_backward_meta(const OpCall& call) {
  return norm_backward_meta(call, call.ints_arg("normalized_shape"));
}

// --- group_norm: samples are independent ---------------------------------

Strategies group_norm(const OpCall& call, int64_t) {
  return shard_leading_dims(call, 1);
}

Strategies group_norm_backward(const OpCall& call, int64_t) {
  return shard_leading_dims_backward(call, 1);
}

std::vector<OutputMeta> group_norm_meta(const OpCall& call) {
  const auto& spec = *call.inputs[0].spec;
  const Sizes shape{call.int_arg("N"), call.int_arg("C"), call.int_arg("HxW")};
  DTENSOR_CHECK(
      spec.dim() > 1 &&
          spec.sizes().slice(0, 2) == SizesRef(shape).slice(0, 2) &&
          spec.numel() == numel(shape),
      "[{}] got N {}, C {} and HxW {} for {}. Pass its numbers of samples, "
      "channels and positions.",
      call.name(),
      shape[0],
      shape[1],
      shape[2],
      spec);
  const Sizes statistics{shape[0], call.int_arg("group")};
  const auto dtype = statistics_dtype(call);
  return {dense_like(spec), dense(statistics, dtype), dense(statistics, dtype)};
}

std::vector<OutputMeta> group_norm_backward_meta(const OpCall& call) {
  return norm_backward_meta(call, {call.int_arg("C")});
}

// Sets the argument N to the number of local samples.
void localize_samples(const OpCall& call, Decision& decision) {
  const auto i = static_cast<size_t>(call.input_index("input"));
  decision.args.emplace_back(
      call.arg_index("N"), decision.layout_of(call, i).local_sizes()[0]);
}

// --- batch_norm and instance_norm --------------------------------------------

// Returns true for an input that LibTorch returns unchanged, for any number of
// channels.
bool has_no_channels(const Spec& input) {
  return input.dim() == 1 && input.numel() == 0;
}

// Returns the dtype of an empty input after scaling. LibTorch multiplies such
// an input by a single weight and adds a bias, and both promote dtypes as
// numbers.
at::ScalarType scaled_by(at::ScalarType dtype, at::ScalarType number) {
  const bool becomes_complex =
      c10::isComplexType(number) && !c10::isComplexType(dtype);
  const bool becomes_real =
      c10::isFloatingType(number) && c10::isIntegralType(dtype, true);
  return becomes_complex || becomes_real ? c10::promoteTypes(dtype, number)
                                         : dtype;
}

// Checks global shapes, then infers the result. Shards of vectors that are too
// long could fit the local channels.
std::vector<OutputMeta> channel_norm_meta(const OpCall& call) {
  const auto& input = *call.inputs[0].spec;
  if (has_no_channels(input)) {
    return dense_like_first(call);
  }
  DTENSOR_CHECK(
      input.dim() >= 2,
      "[{}] needs an input of two dimensions or more, got {}. Pass (samples, "
      "channels, ...).",
      call.name(),
      input);
  for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
    const auto* vector = call.has_arg(name) ? call.input(name) : nullptr;
    DTENSOR_CHECK(
        vector == nullptr || vector->spec->numel() == input.sizes()[1],
        "[{}] {}, {}, must have {}, one per channel of {}. Pass one number for "
        "each channel.",
        call.name(),
        name,
        vector == nullptr ? input : *vector->spec,
        pluralize(input.sizes()[1], "element"),
        input);
  }
  auto outputs = dense_like_first(call);
  for (const auto* name : {"weight", "bias"}) {
    const auto* operand = call.input(name);
    if (input.numel() == 0 && operand != nullptr) {
      outputs[0].dtype = scaled_by(outputs[0].dtype, operand->spec->dtype());
    }
  }
  return outputs;
}

// Returns true if dimension `d` may be sharded. In the training of a
// batch_norm, ranks that shard samples or spatial dimensions compute joint
// statistics.
bool may_shard(
    const OpCall& call,
    ChannelNorm norm,
    int64_t d,
    int64_t mesh_dim) {
  const auto* running = call.input("running_mean");
  const bool training = call.bool_arg(training_flag(norm));
  if (!training && running != nullptr) {
    return true;
  }
  if (training && running != nullptr && d == 1) {
    return running->placement(mesh_dim).is_sharded(0);
  }
  if (training && running != nullptr) {
    // Running statistics of instance_norm are means over samples.
    return norm == ChannelNorm::kBatch &&
        running->placement(mesh_dim).is_replicate();
  }
  return d == 1 || (norm == ChannelNorm::kBatch && training) ||
      (norm == ChannelNorm::kInstance && d == 0);
}

// Returns the placement of vectors, which have a number per channel, if
// dimension `d` of the input is sharded.
Placement of_channels(int64_t d) {
  return d == 1 ? Shard(0) : Replicate();
}

DimRule channel_norm(ChannelNorm norm) {
  return [norm](const OpCall& call, int64_t mesh_dim) {
    Strategies all;
    const auto dims =
        has_no_channels(*call.inputs[0].spec) ? 0 : call.inputs[0].dim();
    for (int64_t d = 0; d < dims; ++d) {
      if (may_shard(call, norm, d, mesh_dim)) {
        all.push_back(
            {{Shard(d)}, Placements(call.inputs.size(), of_channels(d))});
        all.back().inputs[0] = Shard(d);
      }
    }
    return all;
  };
}

// --- the operators below batch_norm, with statistics as results --------------

// Returns true if the statistics are those of the input.
bool trains(const OpCall& call) {
  for (const char* name : {"training", "train", "update"}) {
    if (call.has_arg(name)) {
      return call.bool_arg(name);
    }
  }
  return call.name().find("with_update") != std::string::npos;
}

bool fits_running(const OpCall& call, int64_t d, int64_t mesh_dim) {
  const auto* running =
      call.has_arg("running_mean") ? call.input("running_mean") : nullptr;
  if (!trains(call)) {
    return running != nullptr;
  }
  return running == nullptr ||
      (d == 1 ? running->placement(mesh_dim).is_sharded(0)
              : running->placement(mesh_dim).is_replicate());
}

// Returns the strategies for input, vectors... -> output, statistics...
Strategies native_batch_norm(const OpCall& call, int64_t mesh_dim) {
  Strategies all;
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    if (!fits_running(call, d, mesh_dim)) {
      continue;
    }
    const auto statistics = trains(call) ? of_channels(d) : Replicate();
    Strategy s{
        {Shard(d), statistics, statistics},
        Placements(call.inputs.size(), of_channels(d))};
    s.inputs[0] = Shard(d);
    s.outputs.resize(call.outputs.size(), Replicate()); // the reserve
    all.push_back(std::move(s));
  }
  return all;
}

std::vector<OutputMeta> native_batch_norm_meta(const OpCall& call) {
  auto outputs = channel_norm_meta(call);
  const auto& input = *call.inputs[0].spec;
  auto dtype = input.dtype();
  for (const char* name : {"weight", "bias", "running_mean"}) {
    if (const auto* vector = call.has_arg(name) ? call.input(name) : nullptr) {
      dtype = vector->spec->dtype();
      break;
    }
  }
  outputs.resize(1);
  const int64_t channels = input.dim() < 2 ? 0 : input.sizes()[1];
  outputs.resize(3, dense({trains(call) ? channels : 0}, dtype));
  if (call.schema.returns().size() == 4) {
    outputs.push_back(dense({0}, at::kByte));
  }
  return outputs;
}

// Returns the strategies for grad_out, input, vectors..., statistics... ->
// gradients of input, weight and bias.
Strategies native_batch_norm_backward(const OpCall& call, int64_t) {
  Strategies all;
  for (int64_t d = 0; d < call.inputs[1].dim(); ++d) {
    const auto gradient = d == 1 ? Shard(0) : partial_sum();
    Strategy s{{Shard(d), gradient, gradient}, {}};
    for (const auto& input : call.inputs) {
      const bool has_channels = input.dim() == 1 && input.sizes()[0] > 0;
      s.inputs.push_back(
          has_channels           ? of_channels(d)
              : input.dim() == 1 ? Replicate()
                                 : Shard(d));
    }
    all.push_back(std::move(s));
  }
  all.push_back(replicated_except(
      call,
      {partial_sum(), partial_sum(), partial_sum()},
      {{0, partial_sum()}}));
  return all;
}

std::vector<OutputMeta> native_batch_norm_backward_meta(const OpCall& call) {
  return norm_backward_meta(call, {call.input("input")->sizes()[1]});
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

DTENSOR_RULES(batch_norm) {
  rules.dim_rule("batch_norm", channel_norm(ChannelNorm::kBatch))
      .with_meta(channel_norm_meta)
      .with_local_kernel(channel_norm_local(ChannelNorm::kBatch));
  rules.dim_rule("instance_norm", channel_norm(ChannelNorm::kInstance))
      .with_meta(channel_norm_meta)
      .with_local_kernel(channel_norm_local(ChannelNorm::kInstance));
  for (const char* name :
       {"native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit.no_stats",
        "_batch_norm_with_update",
        "_batch_norm_no_update"}) {
    rules.dim_rule(name, native_batch_norm)
        .with_meta(native_batch_norm_meta)
        .with_local_kernel(boxed(batch_norm_local));
  }
  for (const char* name :
       {"native_batch_norm_backward", "batch_norm_backward"}) {
    rules.dim_rule(name, native_batch_norm_backward)
        .with_meta(native_batch_norm_backward_meta)
        .with_local_kernel(boxed(batch_norm_backward_local));
  }
  for (const char* name :
       {"_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
        "_batch_norm_with_update_functional"}) {
    rules.keep_composite(name);
  }
}

} // namespace dtensor
