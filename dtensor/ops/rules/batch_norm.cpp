// SPDX-License-Identifier: BSD-3-Clause
// batch_norm and instance_norm. Channels are independent; for instance_norm,
// samples are independent, too. In training, ranks that shard samples or
// spatial dimensions compute the joint statistics of a batch_norm.
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <c10/core/ScalarType.h>

namespace dtensor {
namespace {

using detail::batch_norm_backward_local;
using detail::batch_norm_local;
using detail::boxed;
using detail::channel_norm_local;
using detail::ChannelNorm;
using detail::dense;
using detail::dense_like_first;
using detail::norm_backward_meta;

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
        detail::pluralize(input.sizes()[1], "element"),
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
  const bool training = call.bool_arg(detail::training_flag(norm));
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

DimRule channel_norm(ChannelNorm norm) {
  return [norm](const OpCall& call, int64_t mesh_dim) {
    Strategies all;
    const auto dims =
        has_no_channels(*call.inputs[0].spec) ? 0 : call.inputs[0].dim();
    for (int64_t d = 0; d < dims; ++d) {
      if (may_shard(call, norm, d, mesh_dim)) {
        Strategy s;
        s.inputs.resize(call.inputs.size(), d == 1 ? Shard(0) : Replicate());
        s.inputs[0] = Shard(d);
        s.outputs = {Shard(d)};
        all.push_back(std::move(s));
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
    const Placement channels = d == 1 ? Placement(Shard(0)) : Replicate();
    Strategy s;
    s.inputs.resize(call.inputs.size(), channels);
    s.inputs[0] = Shard(d);
    s.outputs.resize(3, trains(call) ? channels : Placement(Replicate()));
    s.outputs[0] = Shard(d);
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
  const auto place = [&](int64_t d) {
    const Placement channels = d == 1 ? Placement(Shard(0)) : Replicate();
    Strategy s;
    for (const auto& input : call.inputs) {
      const bool is_vector = input.dim() == 1;
      const bool has_channels = is_vector && input.sizes()[0] > 0;
      s.inputs.push_back(
          !is_vector         ? Placement(Shard(d))
              : has_channels ? channels
                             : Placement(Replicate()));
    }
    const Placement sum = Partial(ReduceOp::kSum);
    s.outputs.resize(3, d == 1 ? channels : sum);
    s.outputs[0] = Shard(d);
    return s;
  };
  Strategies all;
  for (int64_t d = 0; d < call.inputs[1].dim(); ++d) {
    all.push_back(place(d));
  }
  const Placement sum = Partial(ReduceOp::kSum);
  Strategy linear{{sum, sum, sum}, Placements(call.inputs.size(), Replicate())};
  linear.inputs[0] = sum;
  all.push_back(std::move(linear));
  return all;
}

std::vector<OutputMeta> native_batch_norm_backward_meta(const OpCall& call) {
  return norm_backward_meta(call, {call.input("input")->sizes()[1]});
}

} // namespace

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
