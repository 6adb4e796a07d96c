// SPDX-License-Identifier: BSD-3-Clause
#include "truth.h"

#include <ATen/ATen.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/meta_impl.h>
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

double tolerance_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
    case at::kComplexDouble:
      return 1e-8;
    case at::kFloat:
    case at::kComplexFloat:
      return 2e-3;
    case at::kHalf:
    case at::kBFloat16:
      return 2e-2;
    default:
      return 0;
  }
}

std::string describe(const at::Tensor& t) {
  return c10::str(t.scalar_type(), t.sizes());
}

// Returns how the DTensor contradicts its spec.
std::string inconsistency(const DTensor& t) {
  const auto& spec = *t.spec();
  const auto& local = detail::local_of(t);
  if (spec.dtype() != t.scalar_type() || spec.dtype() != local.scalar_type()) {
    return c10::str(
        " is ",
        t.scalar_type(),
        ", its spec ",
        spec.dtype(),
        ", its part ",
        local.scalar_type());
  }
  if (spec.sizes() != t.sizes() || spec.local_sizes() != local.sizes()) {
    return c10::str(
        " has shape ",
        t.sizes(),
        ", its spec ",
        spec.sizes(),
        ", its part ",
        local.sizes(),
        " in place of ",
        spec.local_sizes());
  }
  return "";
}

// Returns differences that are visible without the values.
std::string shape_of_one(const at::Tensor& mine, const at::Tensor& truth) {
  if (!mine.defined() || !truth.defined()) {
    return mine.defined() == truth.defined() ? ""
        : mine.defined()                     ? " is defined"
                                             : " is undefined";
  }
  if (mine.sizes() != truth.sizes() ||
      mine.scalar_type() != truth.scalar_type()) {
    return " is " + describe(mine) + ", not " + describe(truth);
  }
  return is_dtensor(mine) ? inconsistency(DTensor(mine)) : " is plain";
}

at::Tensor full_of(const at::Tensor& t) {
  const auto full = t.detach();
  return is_dtensor(full) ? DTensor(full).full_tensor() : full;
}

// Returns the tolerance of the coarsest operand dtype. Sums over ranks round in
// that dtype, whatever the result's dtype is.
double coarsest_tolerance(const Truth& truth) {
  double coarsest = 0;
  for (const auto& operand : truth.operands) {
    coarsest = std::max(coarsest, tolerance_of(operand.scalar_type()));
  }
  return coarsest;
}

std::string
value_of_one(const at::Tensor& mine, const at::Tensor& truth, double coarsest) {
  if (!mine.defined() || !truth.defined()) {
    // An undefined gradient counts as zero.
    const auto& there = mine.defined() ? mine : truth;
    return there.defined() && full_of(there).count_nonzero().item<int64_t>() > 0
        ? mine.defined() ? " is defined" : " is absent"
        : "";
  }
  const auto full = full_of(mine).resolve_conj().resolve_neg();
  const auto expected = truth.detach().resolve_conj().resolve_neg();
  const bool rounds = truth.is_floating_point() || truth.is_complex();
  const auto own = tolerance_of(truth.scalar_type());
  const auto tolerance = rounds ? std::max(own, coarsest) : own;
  if (at::allclose(full, expected, tolerance, tolerance, /*equal_nan=*/true)) {
    return "";
  }
  const auto off =
      at::isclose(full, expected, tolerance, tolerance, /*equal_nan=*/true)
          .logical_not()
          .reshape({-1});
  const auto at = off.nonzero()[0].item<int64_t>();
  std::ostringstream text;
  text << " differs in " << off.sum().item<int64_t>() << " of " << off.numel()
       << " elements, first " << full.reshape({-1})[at].item() << ", not "
       << expected.reshape({-1})[at].item();
  return text.str();
}

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (a.isDouble() && b.isDouble()) {
    const auto x = a.toDouble(), y = b.toDouble();
    return x == y || (x != x && y != y) ||
        std::abs(x - y) <= 1e-8 * (1 + std::abs(y));
  }
  return a == b;
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

// Marks the arguments that the schema says are written.
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

namespace {

const Results& expected_of(const Truth& truth, Mode mode) {
  return mode == Mode::kGrad ? truth.grad : truth.no_grad;
}

// Keeps the first reported difference.
class First {
 public:
  void add(const std::string& what, size_t i, const std::string& why) {
    if (text_.empty() && !why.empty()) {
      text_ = c10::str(what, " ", i, why);
    }
  }
  const std::string& text() const {
    return text_;
  }

 private:
  std::string text_;
};

at::Tensor gradient(const Results& results, size_t i) {
  return i < results.grads.size() ? results.grads[i] : at::Tensor();
}

} // namespace

std::string
shape_difference(const Truth& truth, Mode mode, const Results& mine) {
  const auto& expected = expected_of(truth, mode);
  if (mine.values.size() != expected.values.size() ||
      mine.others.size() != expected.others.size()) {
    return c10::str(
        mine.values.size(), " tensors, not ", expected.values.size());
  }
  First first;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const auto& value = mine.values[i];
    first.add("result", i, shape_of_one(value, expected.values[i]));
    if (value.defined() && expected.values[i].defined() &&
        value.requires_grad() != expected.values[i].requires_grad()) {
      first.add(
          "result",
          i,
          value.requires_grad() ? " requires a gradient"
                                : " requires no gradient");
    }
  }
  for (size_t i = 0; i < truth.mutated.size(); ++i) {
    if (truth.mutated[i]) {
      first.add(
          "operand, afterwards,",
          i,
          shape_of_one(mine.operands[i], expected.operands[i]));
    }
  }
  for (size_t i = 0; i < expected.grads.size(); ++i) {
    const auto mine_i = gradient(mine, i);
    if (mine_i.defined() && expected.grads[i].defined()) {
      first.add("gradient", i, shape_of_one(mine_i, expected.grads[i]));
    }
  }
  return first.text();
}

// Compares all values. A rank that stopped at the first difference would leave
// the others waiting in a collective.
std::string value_difference(
    const Truth& truth,
    Mode mode,
    const Results& mine,
    Compared compared) {
  const auto& expected = expected_of(truth, mode);
  if (compared != Compared::kAll) {
    return "";
  }
  const auto coarsest = coarsest_tolerance(truth);
  First first;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    first.add(
        "result",
        i,
        value_of_one(mine.values[i], expected.values[i], coarsest));
  }
  for (size_t i = 0; i < expected.others.size(); ++i) {
    if (!same_value(mine.others[i], expected.others[i])) {
      first.add(
          "result",
          i,
          c10::str(" is ", mine.others[i], ", not ", expected.others[i]));
    }
  }
  for (size_t i = 0; i < truth.mutated.size(); ++i) {
    if (truth.mutated[i]) {
      first.add(
          "operand, afterwards,",
          i,
          value_of_one(mine.operands[i], expected.operands[i], coarsest));
    }
  }
  for (size_t i = 0; i < expected.grads.size(); ++i) {
    first.add(
        "gradient",
        i,
        value_of_one(gradient(mine, i), expected.grads[i], coarsest));
  }
  return first.text();
}

} // namespace dtensor::randomized
