// SPDX-License-Identifier: BSD-3-Clause
#include "truth.h"

#include <ATen/ATen.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>

#include "tests/randomized/harness/verdict.h"

namespace dtensor::randomized {
namespace {

// Returns the first line of the error of `fn`, or an empty text.
template <class Fn>
std::string error_of(const Fn& fn) {
  try {
    fn();
  } catch (const c10::Error& e) {
    return first_line(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return first_line(e.what());
  }
  return "";
}

bool can_differentiate(const at::Tensor& t) {
  return t.is_floating_point() || t.is_complex();
}

// Returns the gradient of a result: equal on every rank, in the result's
// layout.
at::Tensor cotangent_of(const at::Tensor& result, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const auto weight =
      at::rand(result.sizes(), generator, at::kDouble).add_(0.1);
  auto full = (result.is_complex() ? at::complex(weight, 1 - weight) : weight)
                  .to(result.scalar_type());
  if (!is_dtensor(result)) {
    return full;
  }
  const auto& spec = DTensor(result).spec();
  Placements layout(spec->placements().begin(), spec->placements().end());
  for (auto& p : layout) {
    p = p.is_partial() ? Placement(Replicate()) : p;
  }
  return distribute_tensor(full, spec->mesh(), layout, std::nullopt);
}

// Returns a sum of the values, weighted so that gradients depend on the order
// of elements.
at::Tensor weighted_sum(const at::Tensor& value, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  auto weight =
      at::rand(value.sizes(), generator, at::kDouble).mul_(0.8).add_(0.1);
  if (!is_dtensor(value)) {
    return (value * weight).sum();
  }
  const auto mesh = DTensor(value).device_mesh();
  const Placements replicated(static_cast<size_t>(mesh.ndim()), Replicate());
  weight = distribute_tensor(weight, mesh, replicated, std::nullopt);
  return DTensor((value * weight).sum()).full_tensor();
}

void differentiate(Results& results, const Tensors& leaves, bool has_loss) {
  Tensors outputs;
  Tensors cotangents;
  for (const auto& value : results.values) {
    if (!value.defined() || !value.requires_grad()) {
      continue;
    }
    const auto seed = 1000 + outputs.size();
    if (!has_loss) {
      outputs.push_back(value);
      cotangents.push_back(cotangent_of(value, seed + 1));
    } else if (value.scalar_type() == at::kDouble) {
      outputs.push_back(weighted_sum(value, seed));
      cotangents.push_back(at::ones({}, at::kDouble));
    }
  }
  Tensors inputs;
  for (const auto& leaf : leaves) {
    if (leaf.defined()) {
      inputs.push_back(leaf);
    }
  }
  if (outputs.empty() || inputs.empty()) {
    return;
  }
  auto grads = torch::autograd::grad(
      outputs, inputs, cotangents, std::nullopt, false, /*allow_unused=*/true);
  size_t next = 0;
  for (const auto& leaf : leaves) {
    results.grads.push_back(leaf.defined() ? grads[next++] : at::Tensor());
  }
}

void split_results(torch::jit::Stack& stack, Results& results) {
  for (const auto& value : stack) {
    if (value.isTensor()) {
      results.values.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const auto& t : value.toTensorVector()) {
        results.values.push_back(t);
      }
    } else {
      results.others.push_back(value);
    }
  }
}

// Makes `copy` a wrapped number if `t` is a wrapped number.
at::Tensor as_wrapped(const at::Tensor& t, at::Tensor copy) {
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

// Returns a leaf for an operand that requires a gradient.
at::Tensor leaf_of(const at::Tensor& operand, bool requires_grad) {
  auto leaf = as_wrapped(operand, operand.detach());
  leaf.set_requires_grad(requires_grad);
  return leaf;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
      at::allclose(a, b, 0, 0, /*equal_nan=*/true);
}

} // namespace

Results compute(
    const Call& call,
    const Tensors& operands,
    const std::vector<bool>& mutated,
    const std::vector<bool>& leaf_flags,
    Mode mode,
    bool forward_only) {
  const at::AutoGradMode grad_mode(mode == Mode::kGrad);
  Results results;
  Tensors leaves(operands.size());
  const auto give = [&](const at::Tensor&, size_t i) {
    const bool is_leaf = mode == Mode::kGrad && leaf_flags[i];
    auto leaf = leaf_of(operands[i], is_leaf);
    leaves[i] = is_leaf ? leaf : at::Tensor();
    const bool copy = mutated.empty() || mutated[i];
    results.operands.push_back(copy ? as_wrapped(leaf, leaf.clone()) : leaf);
    return results.operands.back();
  };
  results.error = error_of([&] {
    auto stack = with_tensors(call.arguments, give);
    call.op.callBoxed(&stack);
    split_results(stack, results);
  });
  if (results.error.empty() && mode == Mode::kGrad && !forward_only) {
    results.backward_error =
        error_of([&] { differentiate(results, leaves, call.has_loss); });
  }
  return results;
}

namespace {

// Marks the arguments that the operator writes, according to the schema.
void add_written(const Call& call, std::vector<bool>& mutated) {
  size_t next = 0;
  const auto& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::ArrayRef<c10::IValue> argument(&call.arguments[i], 1);
    const auto count = tensors_in(argument).size();
    const auto* alias = arguments[i].alias_info();
    for (size_t k = 0; k < count; ++k, ++next) {
      mutated[next] = mutated[next] || (alias != nullptr && alias->isWrite());
    }
  }
}

} // namespace

Truth truth_of(const Call& call) {
  Truth truth;
  for (const auto& t : tensors_in(call.arguments)) {
    truth.operands.push_back(as_wrapped(t, t.detach()));
    truth.leaves.push_back(t.requires_grad() && can_differentiate(t));
    truth.differentiable |= truth.leaves.back();
  }
  truth.no_grad =
      compute(call, truth.operands, {}, truth.leaves, Mode::kNoGrad);
  for (size_t i = 0; i < truth.operands.size(); ++i) {
    truth.mutated.push_back(
        i < truth.no_grad.operands.size() &&
        !same_bits(truth.no_grad.operands[i], truth.operands[i]));
  }
  add_written(call, truth.mutated);
  if (truth.differentiable) {
    truth.grad =
        compute(call, truth.operands, truth.mutated, truth.leaves, Mode::kGrad);
  }
  return truth;
}

} // namespace dtensor::randomized
