// SPDX-License-Identifier: BSD-3-Clause
// Losses of complete samples: margins between classes, and CTC. Samples may be
// sharded. A mean divides the local sum by the global number of samples.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <ATen/core/Reduction.h>

#include <algorithm>
#include <vector>

namespace dtensor {
namespace {

using detail::all_alike;
using detail::dense;
using detail::dense_like_second;
using detail::keep_layouts;

bool is_per_sample(const OpCall& call) {
  return call.int_arg("reduction") == at::Reduction::None;
}

// Returns the placement of the losses of sharded samples.
Placement loss_placement(const OpCall& call) {
  return is_per_sample(call) ? Placement(Shard(0)) : Partial(ReduceOp::kSum);
}

// Returns the strategies of (self, target, weight?) -> loss, is_target?.
Strategies margin_loss(const OpCall& call, int64_t) {
  if (call.inputs[0].dim() != 2) {
    return {};
  }
  Strategy s{
      Placements(call.outputs.size(), Shard(0)),
      Placements(call.inputs.size(), Replicate())};
  s.inputs[0] = s.inputs[1] = Shard(0);
  s.outputs[0] = loss_placement(call);
  return {s};
}

// Returns the strategies of (grad_output, self, target, weight or is_target) ->
// gradient of self.
Strategies margin_loss_backward(const OpCall& call, int64_t) {
  if (call.inputs[1].dim() != 2) {
    return {};
  }
  Strategy s{{Shard(0)}, Placements(call.inputs.size(), Replicate())};
  s.inputs[0] = call.inputs[0].dim() > 0 ? Placement(Shard(0)) : Replicate();
  s.inputs[1] = s.inputs[2] = Shard(0);
  if (call.has_arg("is_target")) {
    s.inputs[3] = Shard(0);
  }
  return {s};
}

// Throws for targets that do not fit. Local targets could fit although the
// global targets do not.
[[noreturn]] void refuse_target(const OpCall& call, const char* each) {
  DTENSOR_THROW(
      "[{}] needs scores of (samples, classes) or (classes) with a target for "
      "each {}, got {} and {}. Reshape them.",
      call.name(),
      each,
      *call.inputs[0].spec,
      *call.inputs[1].spec);
}

std::vector<OutputMeta> multi_margin_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto& target = *call.inputs[1].spec;
  const auto samples = self.dim() == 2 ? self.sizes()[0] : 1;
  if (self.dim() > 2 || target.dim() > 1 || target.numel() != samples) {
    refuse_target(call, "sample");
  }
  return {
      dense(is_per_sample(call) ? target.sizes() : SizesRef{}, self.dtype())};
}

std::vector<OutputMeta> multilabel_margin_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto& target = *call.inputs[1].spec;
  if (self.dim() > 2 || target.sizes() != self.sizes()) {
    refuse_target(call, "score");
  }
  const bool batched = self.dim() == 2 && is_per_sample(call);
  return {
      dense(batched ? self.sizes().slice(0, 1) : SizesRef{}, self.dtype()),
      dense(target.sizes(), self.dtype())};
}

// --- CTC --------------------------------------------------------------------
//
// log_probs are (time, samples, classes), targets (samples, length) or the
// labels of all samples one after the other.

constexpr size_t kSamples = 1; // dimension of log_probs

// Appends the placements of the targets and of lengths in tensors. The position
// of a sample's labels in concatenated targets depends on all lengths.
void place_targets(const OpCall& call, size_t log_probs, Strategy& strategy) {
  const bool padded = call.inputs[log_probs + 1].dim() == 2;
  const auto placement = padded ? Placement(Shard(0)) : Replicate();
  strategy.inputs[log_probs + 1] = placement;
  for (const auto* name : {"input_lengths", "target_lengths"}) {
    if (call.arg(name).isTensor()) {
      strategy.inputs[static_cast<size_t>(call.input_index(name))] = placement;
    }
  }
}

// Returns the strategies of the loss, or of the loss and its log_alpha.
Strategies ctc_loss(const OpCall& call, int64_t) {
  if (call.inputs[0].dim() != 3) {
    return {};
  }
  Strategy s{{}, Placements(call.inputs.size(), Replicate())};
  s.inputs[0] = Shard(kSamples);
  place_targets(call, 0, s);
  s.outputs.resize(call.outputs.size(), Shard(0));
  if (call.has_arg("reduction")) {
    s.outputs[0] = loss_placement(call);
  }
  return {s};
}

Strategies ctc_loss_backward(const OpCall& call, int64_t) {
  if (call.inputs[1].dim() != 3) {
    return {};
  }
  Strategy s{{Shard(kSamples)}, Placements(call.inputs.size(), Shard(0))};
  s.inputs[1] = Shard(kSamples);
  place_targets(call, 1, s);
  return {s};
}

// Returns the number of elements of lengths in a list or a tensor.
int64_t count_of(const OpCall& call, const char* name) {
  const auto& value = call.arg(name);
  return value.isTensor() ? numel(call.input(name)->sizes())
                          : static_cast<int64_t>(call.ints_arg(name).size());
}

// Checks the numbers of lengths, because local numbers could fit although the
// global ones do not. Returns the number of samples.
int64_t checked_samples(const OpCall& call) {
  const auto& log_probs = *call.input("log_probs")->spec;
  const auto samples = log_probs.dim() == 3 ? log_probs.sizes()[kSamples] : 1;
  const auto& targets = *call.input("targets")->spec;
  DTENSOR_CHECK(
      (log_probs.dim() == 2 || log_probs.dim() == 3) &&
          count_of(call, "input_lengths") == samples &&
          count_of(call, "target_lengths") == samples &&
          (targets.dim() == 1 ||
           (targets.dim() == 2 && targets.sizes()[0] == samples)),
      "[{}] needs log_probs of (time, samples, classes) with targets and two "
      "lengths for each sample, got {} and {} with {} and {}. Pass a length "
      "for each sample.",
      call.name(),
      log_probs,
      targets,
      detail::pluralize(
          static_cast<size_t>(count_of(call, "input_lengths")), "input length"),
      detail::pluralize(
          static_cast<size_t>(count_of(call, "target_lengths")),
          "target length"));
  return samples;
}

std::vector<OutputMeta> ctc_loss_meta(const OpCall& call) {
  const auto samples = checked_samples(call);
  const auto& log_probs = *call.inputs[0].spec;
  const bool batched = log_probs.dim() == 3 && is_per_sample(call);
  return {dense(batched ? Sizes{samples} : Sizes{}, log_probs.dtype())};
}

// Returns the shapes of the losses and of log_alpha, which has two states for
// each label, and one more.
std::vector<OutputMeta> ctc_alpha_meta(const OpCall& call) {
  const auto samples = checked_samples(call);
  const auto& log_probs = *call.inputs[0].spec;
  DTENSOR_CHECK(
      log_probs.dim() == 3,
      "[{}] needs log_probs of (time, samples, classes), got {}. Unsqueeze "
      "them.",
      call.name(),
      log_probs);
  int64_t longest = 0;
  for (const auto length : call.ints_arg("target_lengths")) {
    longest = std::max(longest, length);
  }
  return {
      dense({samples}, log_probs.dtype()),
      dense(
          {samples, log_probs.sizes()[0], 2 * longest + 1}, log_probs.dtype())};
}

std::vector<OutputMeta> ctc_backward_meta(const OpCall& call) {
  checked_samples(call);
  return dense_like_second(call);
}

} // namespace

DTENSOR_RULES(sample_loss) {
  rules.dim_rule("multi_margin_loss", margin_loss)
      .with_meta(multi_margin_meta)
      .with_localize(keep_layouts)
      .with_local_kernel(detail::boxed(detail::margin_loss_local))
      .as_region();
  rules.dim_rule("multilabel_margin_loss_forward", margin_loss)
      .with_meta(multilabel_margin_meta)
      .with_localize(keep_layouts)
      .with_local_kernel(detail::boxed(detail::margin_loss_local))
      .as_region();
  for (const auto* name :
       {"multi_margin_loss_backward", "multilabel_margin_loss_backward"}) {
    rules.dim_rule(name, margin_loss_backward)
        .with_meta(dense_like_second)
        .with_localize(keep_layouts)
        .with_local_kernel(detail::boxed(detail::margin_loss_backward_local));
  }
  rules.dim_rule("_ctc_loss", ctc_loss)
      .with_meta(ctc_alpha_meta)
      .with_localize(keep_layouts)
      .with_local_kernel(detail::boxed(detail::ctc_loss_local))
      .no_strided();
  rules.dim_rule("_ctc_loss_backward", ctc_loss_backward)
      .with_meta(ctc_backward_meta)
      .with_localize(keep_layouts)
      .with_local_kernel(detail::boxed(detail::ctc_loss_local))
      .no_strided();
  for (const auto* name : {"ctc_loss.IntList", "ctc_loss.Tensor"}) {
    rules.dim_rule(name, ctc_loss)
        .with_meta(ctc_loss_meta)
        .with_localize(keep_layouts)
        .with_local_kernel(detail::boxed(detail::ctc_loss_local))
        .no_strided()
        .as_region();
  }
}

} // namespace dtensor
