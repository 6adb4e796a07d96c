// SPDX-License-Identifier: BSD-3-Clause
// Losses: means over a sharded batch, and losses of complete samples.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_ctc_loss_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/new_zeros.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/error.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/over_shards_impl.h>
#include <dtensor/tensor/dtensor.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace dtensor {
namespace {

using namespace detail;

double numel_of_inputs(const Decision& decision, size_t first) {
  int64_t numel = 0;
  for (size_t i = first; i < decision.inputs.size(); ++i) {
    if (decision.inputs[i] != nullptr) {
      if (decision.inputs[i]->numel() == 0) {
        return 0;
      }
      numel = std::max(numel, decision.inputs[i]->numel());
    }
  }
  return static_cast<double>(numel);
}

double local_numel_of_inputs(const Decision& decision) {
  int64_t numel = 0;
  for (const auto& input : decision.inputs) {
    if (input != nullptr) {
      numel = std::max(numel, c10::multiply_integers(input->local_sizes()));
    }
  }
  return static_cast<double>(numel);
}

} // namespace

// Computes a mean as a sum divided by the global number of elements. Operands
// that broadcast against each other are never sharded here, and use the plain
// mean.
void detail::loss_local(KernelArgs& args, const Decision& decision) {
  const bool sharded = decision.outputs[0]->has_partial();
  if (!sharded || args.integer("reduction") != at::Reduction::Mean) {
    return args.run_operator();
  }
  const double local = local_numel_of_inputs(decision);
  const auto dtype = decision.outputs[0]->dtype();
  if (local > 0 && accumulation_dtype(dtype) != dtype) {
    // The sum of 16-bit numbers may overflow; the plain mean adds in 32 bits.
    args.returns(args.compute() * (local / numel_of_inputs(decision, 0)));
    return;
  }
  args.set("reduction", int64_t{at::Reduction::Sum});
  args.returns(args.compute() / numel_of_inputs(decision, 0));
}

void detail::loss_backward_local(KernelArgs& args, const Decision& decision) {
  if (args.integer("reduction") != at::Reduction::Mean ||
      !shards_any_dim(*decision.outputs[0])) {
    return args.run_operator();
  }
  args.set("reduction", int64_t{at::Reduction::Sum});
  args.returns(args.compute() / numel_of_inputs(decision, 1));
}

void detail::nll_local(KernelArgs& args, const Decision& decision) {
  const auto& self = *decision.inputs[0];
  if (args.integer("reduction") != at::Reduction::Mean ||
      !shards_any_dim(self)) {
    return args.run_operator();
  }
  args.set("reduction", int64_t{at::Reduction::Sum});
  args.run_operator();
  const auto total_weight = torch::jit::pop(args.stack()).toTensor();
  const auto sum = torch::jit::pop(args.stack()).toTensor();
  // A sum over ranks may overflow in a 16-bit type, its mean does not.
  const auto dtype = sum.scalar_type();
  auto sums = at::stack({sum, total_weight}).to(at::toOpMathType(dtype));
  for (int64_t m = 0; m < self.mesh().ndim(); ++m) {
    if (self.placements()[static_cast<size_t>(m)].is_sharded()) {
      sums = get_group(self.mesh(), m).all_reduce(sums, ReduceOp::kSum);
    }
  }
  torch::jit::push(
      args.stack(), (sums[0] / sums[1]).to(dtype), sums[1].to(dtype));
}

namespace {

// Replaces a mean by a sum. Returns the divisor that turns the sum into the
// global mean; 1 for other reductions.
double sum_for_mean(KernelArgs& args, const Spec& self) {
  if (args.integer("reduction") != at::Reduction::Mean) {
    return 1;
  }
  args.set("reduction", int64_t{at::Reduction::Sum});
  return static_cast<double>(self.sizes()[0]);
}

bool shards_samples(const Spec& scores) {
  return scores.dim() == 2 && scores.is_sharded(0);
}

// --- CTC --------------------------------------------------------------------

std::vector<int64_t> ints_of(const c10::IValue& value) {
  return value.isTensor() ? to_list(value.toTensor()) : value.toIntVector();
}

int64_t sum_of(const std::vector<int64_t>& ints, size_t begin, size_t end) {
  return std::accumulate(
      ints.begin() + static_cast<std::ptrdiff_t>(begin),
      ints.begin() + static_cast<std::ptrdiff_t>(end),
      int64_t{0});
}

// Keeps the labels of samples [begin, end) of concatenated targets.
void narrow_targets(
    KernelArgs& args,
    const std::vector<int64_t>& lengths,
    const Interval& held) {
  const auto targets = args.tensor("targets");
  DTENSOR_CHECK(
      sum_of(lengths, 0, lengths.size()) == targets.numel(),
      "[{}] target_lengths add up to {}, but there are {} labels. Pass the "
      "labels of all samples, one after the other.",
      args.name(),
      sum_of(lengths, 0, lengths.size()),
      targets.numel());
  const auto begin = static_cast<size_t>(held.begin);
  const auto end = static_cast<size_t>(held.end);
  args.set(
      "targets",
      targets.narrow(
          0, sum_of(lengths, 0, begin), sum_of(lengths, begin, end)));
}

// Keeps the lengths of the samples in `held`.
void narrow_lengths(KernelArgs& args, const char* name, const Interval& held) {
  const auto& value = args.at(name);
  if (value.isTensor()) {
    args.set(name, value.toTensor().narrow(0, held.begin, held.size()));
    return;
  }
  const auto all = value.toIntVector();
  args.set(
      name,
      std::vector<int64_t>(
          all.begin() + static_cast<std::ptrdiff_t>(held.begin),
          all.begin() + static_cast<std::ptrdiff_t>(held.end)));
}

// Keeps the arguments of this rank's samples. Tensors of padded targets and of
// their lengths are already sharded.
void narrow_to(KernelArgs& args, const Interval& held) {
  const bool padded = args.tensor("targets").dim() == 2;
  if (!padded) {
    narrow_targets(args, ints_of(args.at("target_lengths")), held);
  }
  for (const auto* name : {"input_lengths", "target_lengths"}) {
    if (!padded || !args.at(name).isTensor()) {
      narrow_lengths(args, name, held);
    }
  }
}

// Returns the losses of this rank's samples: one loss per sample, their sum, or
// this rank's term of the mean.
at::Tensor reduced_loss(KernelArgs& args, int64_t samples) {
  if (args.integer("reduction") != at::Reduction::Mean) {
    return args.compute();
  }
  const auto lengths = ints_of(args.at("target_lengths"));
  args.set("reduction", int64_t{at::Reduction::None});
  const auto loss = args.compute();
  const auto divisors = at::tensor(lengths, loss.options()).clamp_min(1);
  return (loss / divisors).sum() / static_cast<double>(samples);
}

// Returns zeros, which depend on log_probs, for no samples or meta tensors.
std::vector<at::Tensor> without_samples(
    const KernelArgs& args,
    const Decision& decision) {
  const auto zeros = args.tensor("log_probs").sum();
  std::vector<at::Tensor> results;
  for (const auto& output : decision.outputs) {
    results.push_back(zeros.expand(output->local_sizes())
                          .clone(at::MemoryFormat::Contiguous));
  }
  return results;
}

// Pads log_alpha to the width that the longest target of any rank needs.
at::Tensor padded_alpha(const at::Tensor& alpha, const Spec& spec) {
  return at::constant_pad_nd(
      alpha,
      {0, spec.sizes().back() - alpha.size(-1)},
      -std::numeric_limits<double>::infinity());
}

// Kernels of _ctc_loss and its gradient with lengths in tensors, whose values
// decide the shape of log_alpha.

std::vector<int64_t> values_of(const at::Tensor& lengths) {
  return ints_of(
      is_dtensor(lengths) ? DTensor(lengths).full_tensor() : lengths);
}

void ctc_loss_of_tensors(KernelArgs& args) {
  auto [loss, alpha] = at::_ctc_loss(
      args.tensor("log_probs"),
      args.tensor("targets"),
      values_of(args.tensor("input_lengths")),
      values_of(args.tensor("target_lengths")),
      args.integer("blank"),
      args.flag("zero_infinity"));
  args.returns(std::move(loss), std::move(alpha));
}

void ctc_gradient_of_tensors(KernelArgs& args) {
  args.returns(at::_ctc_loss_backward(
      args.tensor("grad"),
      args.tensor("log_probs"),
      args.tensor("targets"),
      values_of(args.tensor("input_lengths")),
      values_of(args.tensor("target_lengths")),
      args.tensor("neg_log_likelihood"),
      args.tensor("log_alpha"),
      args.integer("blank"),
      args.flag("zero_infinity")));
}

// Adds a sample of zeros.
at::Tensor with_sample(const at::Tensor& t, int64_t dim = 0) {
  std::vector<int64_t> widths(static_cast<size_t>(2 * (t.dim() - dim)), 0);
  widths.back() = 1;
  return at::constant_pad_nd(t, widths);
}

// Computes the loss of one sample, and drops it. The gradient is then computed
// by the same operator as on other ranks, so that it has a derivative if theirs
// has one. LibTorch leaves the sum of no samples uninitialized.
void run_and_drop_sample(KernelArgs& args, const Decision& decision) {
  args.set("reduction", int64_t{at::Reduction::None});
  args.run_operator();
  for (size_t i = 0; i < decision.outputs.size(); ++i) {
    auto& result = torch::jit::peek(args.stack(), i, decision.outputs.size());
    const auto none = result.toTensor().narrow(0, 0, 0);
    result = decision.outputs[i]->dim() == 0 ? none.sum() : none;
  }
}

void margin_loss_without_samples(KernelArgs& args, const Decision& decision) {
  args.set("self", with_sample(args.tensor("self")));
  args.set("target", with_sample(args.tensor("target")));
  run_and_drop_sample(args, decision);
}

// The sample has no labels. LibTorch refuses targets without elements.
void ctc_loss_without_samples(KernelArgs& args, const Decision& decision) {
  const auto log_probs = args.tensor("log_probs");
  const bool in_tensors = args.at("input_lengths").isTensor();
  const auto length = [&](int64_t n) {
    return in_tensors ? c10::IValue(at::tensor({n}))
                      : c10::IValue(std::vector<int64_t>{n});
  };
  args.set("input_lengths", length(log_probs.size(0)));
  args.set("target_lengths", length(0));
  args.set("log_probs", with_sample(log_probs, 1));
  args.set("targets", args.tensor("targets").new_zeros({1, 1}));
  run_and_drop_sample(args, decision);
}

} // namespace

void detail::margin_loss_local(KernelArgs& args, const Decision& decision) {
  const auto& spec = *decision.inputs[0];
  const auto self = args.tensor("self");
  if (!shards_samples(spec)) {
    return args.run_operator();
  }
  if (self.size(0) == 0) {
    margin_loss_without_samples(args, decision);
    return;
  }
  const auto divisor = sum_for_mean(args, spec);
  args.run_operator();
  auto& loss = torch::jit::peek(args.stack(), 0, decision.outputs.size());
  if (divisor != 1) {
    loss = loss.toTensor() / divisor;
  }
}

void detail::margin_loss_backward_local(
    KernelArgs& args,
    const Decision& decision) {
  const auto& spec = *decision.inputs[1];
  if (!shards_samples(spec)) {
    return args.run_operator();
  }
  const auto self = args.tensor("self");
  if (self.size(0) == 0) {
    args.returns(at::zeros_like(self));
    return;
  }
  const auto divisor = sum_for_mean(args, spec);
  const auto gradient = args.compute();
  args.returns(divisor == 1 ? gradient : gradient / divisor);
}

void detail::ctc_loss_local(KernelArgs& args, const Decision& decision) {
  const auto& spec = *decision.inputs[args.find("grad") == 0 ? 1 : 0];
  if (spec.dim() != 3 || !spec.is_sharded(1)) {
    return args.run_operator();
  }
  const auto intervals = local_intervals(spec, 1);
  const bool is_meta = args.tensor("log_probs").is_meta();
  const bool is_empty = intervals.empty() || intervals[0].size() == 0;
  const bool has_reduction = args.find("reduction") >= 0;
  if (has_reduction && is_empty && !is_meta) {
    return ctc_loss_without_samples(args, decision);
  }
  if (is_meta || is_empty) {
    auto results = without_samples(args, decision);
    args.returns();
    args.stack().insert(args.stack().end(), results.begin(), results.end());
    return;
  }
  narrow_to(args, intervals[0]);
  if (has_reduction) {
    args.stack().push_back(reduced_loss(args, spec.sizes()[1]));
    return;
  }
  args.run_operator();
  if (decision.outputs.size() == 2) {
    args.stack().back() =
        padded_alpha(args.stack().back().toTensor(), *decision.outputs[1]);
  }
}

DTENSOR_RULES(sample_loss_kernels) {
  rules.kernel("_ctc_loss.Tensor", with_args(ctc_loss_of_tensors));
  rules.kernel("_ctc_loss_backward.Tensor", with_args(ctc_gradient_of_tensors));
}

} // namespace dtensor
