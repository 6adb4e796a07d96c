// SPDX-License-Identifier: BSD-3-Clause
// Losses. Elementwise losses are computed on the shards of their inputs.
// Samples of the other losses are independent, so they may be sharded. A mean
// divides the local sum by the global number of elements or samples, so that
// uneven shards are exact.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace dtensor {
namespace {

using namespace detail;

// Returns true if the call returns a loss for each element or sample.
bool is_unreduced(const OpCall& call) {
  return call.int_arg("reduction") == at::Reduction::None;
}

// Adds an operator whose local kernel gets the layouts of its operands.
OpRule& add_loss(
    RuleRegistry& rules,
    const char* name,
    const DimRule& rule,
    const MetaRule& meta,
    LocalKernelFunction& kernel) {
  return rules.dim_rule(name, rule)
      .with_meta(meta)
      .with_localize(keep_layouts)
      .with_local_kernel(boxed(kernel));
}

// Returns the placement of the losses if dimension `d` is sharded.
Placement loss_placement(const OpCall& call, int64_t d) {
  return is_unreduced(call) ? Shard(d) : partial_sum();
}

// Returns the strategies that shard the operands along a dimension of operand
// `self`, to whose shape all of them broadcast.
Strategies sharded_like(const OpCall& call, size_t self, bool reduces) {
  const auto sizes = call.inputs[self].sizes();
  const bool fit = std::ranges::all_of(call.inputs, [&](const OpInput& input) {
    return at::is_expandable_to(input.sizes(), sizes);
  });
  Strategies all;
  for (int64_t d = 0; fit && d < call.inputs[self].dim(); ++d) {
    Strategy s{{reduces ? partial_sum() : Shard(d)}, {}};
    for (const auto& input : call.inputs) {
      s.inputs.push_back(operand_shard(input.sizes(), sizes, d));
    }
    all.push_back(std::move(s));
  }
  return all;
}

// Returns the strategies of (self, target, weights...) -> loss.
Strategies elementwise(const OpCall& call, int64_t) {
  return sharded_like(call, 0, !is_unreduced(call));
}

Sizes broadcast_sizes(const OpCall& call) {
  std::vector<int64_t> sizes;
  for (const auto& input : call.inputs) {
    sizes = at::infer_size(sizes, input.sizes());
  }
  return {sizes.begin(), sizes.end()};
}

// Returns the dtype of a loss, from the meta kernel because each loss promotes
// dtypes differently.
at::ScalarType loss_dtype(const OpCall& call) {
  return pointwise_meta(call)[0].dtype;
}

std::vector<OutputMeta> elementwise_meta(const OpCall& call) {
  return {dense(
      is_unreduced(call) ? broadcast_sizes(call) : Sizes{}, loss_dtype(call))};
}

// Returns the strategies of (grad_output, self, target, weight...) -> gradient
// of self. For the second derivative of a reduced loss, grad_output has the
// shape of self.
Strategies elementwise_backward(const OpCall& call, int64_t) {
  return sharded_like(call, 1, false);
}

std::vector<OutputMeta> elementwise_backward_meta(const OpCall& call) {
  return {dense(broadcast_sizes(call), loss_dtype(call))};
}

// Maps dimension `d` of the logits of nll_loss to a dimension of the target.
// Dimension 1, of the classes, is unsharded.
int64_t target_dim(int64_t d) {
  return d == 0 ? 0 : d - 1;
}

// Returns the strategies of (self, target, weight?) -> loss, total weight. For
// a mean, the local kernel reduces the sums over ranks.
Strategies nll_forward(const OpCall& call, int64_t) {
  const bool is_sum = call.int_arg("reduction") == at::Reduction::Sum;
  Strategies all;
  const auto dim = call.inputs[0].dim();
  for (int64_t d = 0; dim > 1 && d < dim; ++d) {
    if (d == 1) {
      continue;
    }
    const auto target = Shard(target_dim(d));
    auto s = replicated_except(
        call,
        Placements(2, is_sum ? partial_sum() : Replicate()),
        {{0, Shard(d)}, {1, target}});
    if (is_unreduced(call)) {
      s.outputs[0] = target;
    }
    all.push_back(std::move(s));
  }
  return all;
}

std::vector<OutputMeta> nll_forward_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto scalar = dense({}, self.dtype());
  return {
      is_unreduced(call) ? dense(call.inputs[1].sizes(), self.dtype()) : scalar,
      scalar};
}

// Returns the strategies of (grad_output, self, target, weight?, total_weight)
// -> gradient of self.
Strategies nll_backward(const OpCall& call, int64_t) {
  Strategies all;
  const auto dim = call.inputs[1].dim();
  for (int64_t d = 0; dim > 1 && d < dim; ++d) {
    if (d == 1) {
      continue;
    }
    const auto target = Shard(target_dim(d));
    auto s = replicated_except(
        call,
        {Shard(d)},
        {{0, is_unreduced(call) ? target : Replicate()},
         {1, Shard(d)},
         {2, target}});
    all.push_back(s);
    if (call.int_arg("reduction") == at::Reduction::Sum) {
      s.inputs.back() = partial_sum(); // not used
      all.push_back(std::move(s));
    }
  }
  return all;
}

// --- losses of samples -------------------------------------------------------

// Returns the strategies of (self, target, weight?) -> loss, is_target?.
Strategies margin_loss(const OpCall& call, int64_t) {
  if (call.inputs[0].dim() != 2) {
    return {};
  }
  auto s = replicated_except(
      call,
      Placements(call.outputs.size(), Shard(0)),
      {{0, Shard(0)}, {1, Shard(0)}});
  s.outputs[0] = loss_placement(call, 0);
  return {s};
}

// Returns the strategies of (grad_output, self, target, weight or is_target) ->
// gradient of self.
Strategies margin_loss_backward(const OpCall& call, int64_t) {
  if (call.inputs[1].dim() != 2) {
    return {};
  }
  const auto grad = call.inputs[0].dim() > 0 ? Shard(0) : Replicate();
  auto s = replicated_except(
      call, {Shard(0)}, {{0, grad}, {1, Shard(0)}, {2, Shard(0)}});
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
      dense(is_unreduced(call) ? target.sizes() : SizesRef{}, self.dtype())};
}

std::vector<OutputMeta> multilabel_margin_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto& target = *call.inputs[1].spec;
  if (self.dim() > 2 || target.sizes() != self.sizes()) {
    refuse_target(call, "score");
  }
  const bool batched = self.dim() == 2 && is_unreduced(call);
  return {
      dense(batched ? self.sizes().slice(0, 1) : SizesRef{}, self.dtype()),
      dense(target.sizes(), self.dtype())};
}

// --- CTC --------------------------------------------------------------------
// log_probs are (time, samples, classes), targets (samples, length) or the
// labels of all samples one after the other.

constexpr size_t kSamples = 1; // dimension of log_probs

// Appends the placements of the targets and of lengths in tensors. The position
// of a sample's labels in concatenated targets depends on all lengths.
void place_targets(const OpCall& call, size_t log_probs, Strategy& strategy) {
  const bool padded = call.inputs[log_probs + 1].dim() == 2;
  const auto placement = padded ? Shard(0) : Replicate();
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
  auto s = replicated_except(
      call, Placements(call.outputs.size(), Shard(0)), {{0, Shard(kSamples)}});
  place_targets(call, 0, s);
  if (call.has_arg("reduction")) {
    s.outputs[0] = loss_placement(call, 0);
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
      pluralize(count_of(call, "input_lengths"), "input length"),
      pluralize(count_of(call, "target_lengths"), "target length"));
  return samples;
}

std::vector<OutputMeta> ctc_loss_meta(const OpCall& call) {
  const auto samples = checked_samples(call);
  const auto& log_probs = *call.inputs[0].spec;
  const bool batched = log_probs.dim() == 3 && is_unreduced(call);
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

DTENSOR_RULES(loss) {
  for (const char* name :
       {"mse_loss",
        "smooth_l1_loss",
        "huber_loss",
        "soft_margin_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits"}) {
    add_loss(rules, name, elementwise, elementwise_meta, loss_local);
  }
  for (const char* name :
       {"mse_loss_backward",
        "smooth_l1_loss_backward",
        "huber_loss_backward",
        "soft_margin_loss_backward",
        "binary_cross_entropy_backward"}) {
    add_loss(
        rules,
        name,
        elementwise_backward,
        elementwise_backward_meta,
        loss_backward_local);
  }
  for (const char* name : {"nll_loss_forward", "nll_loss2d_forward"}) {
    add_loss(rules, name, nll_forward, nll_forward_meta, nll_local);
  }
  for (const char* name : {"nll_loss_backward", "nll_loss2d_backward"}) {
    rules.dim_rule(name, nll_backward).with_meta(dense_like_second);
  }
}

DTENSOR_RULES(sample_loss) {
  const std::pair<const char*, MetaRule> margin_losses[] = {
      {"multi_margin_loss", multi_margin_meta},
      {"multilabel_margin_loss_forward", multilabel_margin_meta}};
  for (const auto& [name, meta] : margin_losses) {
    add_loss(rules, name, margin_loss, meta, margin_loss_local).as_region();
  }
  for (const auto* name :
       {"multi_margin_loss_backward", "multilabel_margin_loss_backward"}) {
    add_loss(
        rules,
        name,
        margin_loss_backward,
        dense_like_second,
        margin_loss_backward_local);
  }
  add_loss(rules, "_ctc_loss", ctc_loss, ctc_alpha_meta, ctc_loss_local)
      .no_strided();
  add_loss(
      rules,
      "_ctc_loss_backward",
      ctc_loss_backward,
      ctc_backward_meta,
      ctc_loss_local)
      .no_strided();
  for (const auto* name : {"ctc_loss.IntList", "ctc_loss.Tensor"}) {
    add_loss(rules, name, ctc_loss, ctc_loss_meta, ctc_loss_local)
        .no_strided()
        .as_region();
  }
}

} // namespace dtensor
