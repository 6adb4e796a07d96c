// SPDX-License-Identifier: BSD-3-Clause
#include "truth.h"

#include <ATen/ATen.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/meta_impl.h>

#include <sstream>

namespace dtensor::randomized {
namespace {

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

// Returns the contradiction between the DTensor and its spec.
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
// this dtype, for any dtype of the result.
double coarsest_tolerance(const Truth& truth) {
  double coarsest = 0;
  for (const auto& operand : truth.operands) {
    coarsest = std::max(coarsest, tolerance_of(operand.scalar_type()));
  }
  return coarsest;
}

struct Precision {
  double coarsest = 0; // tolerance of the coarsest operand
  bool skips_infinite = false;
};

std::string value_of_one(
    const at::Tensor& mine,
    const at::Tensor& truth,
    const Precision& precision) {
  if (!mine.defined() || !truth.defined()) {
    // An undefined gradient counts as zero.
    const auto& there = mine.defined() ? mine : truth;
    return there.defined() && full_of(there).count_nonzero().item<int64_t>() > 0
        ? mine.defined() ? " is defined" : " is absent"
        : "";
  }
  auto full = full_of(mine).resolve_conj().resolve_neg();
  const auto expected = truth.detach().resolve_conj().resolve_neg();
  if (precision.skips_infinite) {
    full = at::where(expected.isinf(), expected, full);
  }
  const bool rounds = truth.is_floating_point() || truth.is_complex();
  const auto own = tolerance_of(truth.scalar_type());
  const auto tolerance = rounds ? std::max(own, precision.coarsest) : own;
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

// Compares all values. A rank that stopped at its first difference would leave
// the other ranks waiting in a collective.
std::string value_difference(
    const Truth& truth,
    Mode mode,
    const Results& mine,
    Compared compared) {
  const auto& expected = expected_of(truth, mode);
  if (compared != Compared::kAll) {
    return "";
  }
  const Precision precision{coarsest_tolerance(truth), truth.skips_infinite};
  First first;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    first.add(
        "result",
        i,
        value_of_one(mine.values[i], expected.values[i], precision));
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
          value_of_one(mine.operands[i], expected.operands[i], precision));
    }
  }
  for (size_t i = 0; i < expected.grads.size(); ++i) {
    first.add(
        "gradient",
        i,
        value_of_one(gradient(mine, i), expected.grads[i], precision));
  }
  return first.text();
}

} // namespace dtensor::randomized
