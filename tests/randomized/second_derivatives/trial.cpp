// SPDX-License-Identifier: BSD-3-Clause
#include "trial.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/csrc/autograd/autograd.h>

namespace dtensor::second_derivatives {
namespace {

struct Derivatives {
  Tensors values;
  Tensors first;
  Tensors second; // undefined if zero
};

at::Tensor whole(const at::Tensor& t) {
  return t.defined() && is_dtensor(t) ? DTensor(t).full_tensor() : t;
}

// Returns weights of the same kind as `t`: plain, or replicated on its mesh.
at::Tensor weight_for(const at::Tensor& t, uint64_t seed) {
  const auto weight = uniform(t.sizes(), seed);
  return is_dtensor(t) ? replicated(weight, DTensor(t).device_mesh()) : weight;
}

at::Tensor plus(const at::Tensor& sum, const at::Tensor& term) {
  return sum.defined() ? sum + term : term;
}

bool is_differentiable(const at::Tensor& t) {
  return t.defined() && t.requires_grad() && t.scalar_type() == at::kDouble;
}

// Returns a loss that is nonlinear in the values, so that a linear program has
// second derivatives.
at::Tensor loss_of(const Tensors& values) {
  at::Tensor loss;
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_differentiable(values[i])) {
      const auto weight = weight_for(values[i], 1000 + i);
      loss = plus(loss, whole(((values[i] + weight) * values[i]).sum()));
    }
  }
  return loss;
}

Derivatives differentiate(
    const Program& program,
    const Tensors& operands,
    const DeviceMesh* mesh) {
  Tensors leaves;
  Tensors inputs;
  for (const auto& operand : operands) {
    inputs.push_back(operand.detach());
    if (operand.scalar_type() == at::kDouble) {
      inputs.back().set_requires_grad(true);
      leaves.push_back(inputs.back());
    }
  }
  auto results = program.run(inputs, mesh);
  leaves.insert(
      leaves.end(), results.parameters.begin(), results.parameters.end());
  Derivatives d;
  d.values = results.values;
  const auto loss = loss_of(d.values);
  if (!loss.defined()) {
    return d;
  }
  d.first = torch::autograd::grad({loss}, leaves, {}, true, true, true);
  at::Tensor along; // the first derivatives times a vector
  for (size_t i = 0; i < d.first.size(); ++i) {
    if (is_differentiable(d.first[i])) {
      const auto vector = weight_for(d.first[i], 2000 + i);
      along = plus(along, whole((d.first[i] * vector).sum()));
    }
  }
  d.second.resize(leaves.size());
  if (along.defined()) {
    d.second =
        torch::autograd::grad({along}, leaves, {}, std::nullopt, false, true);
  }
  return d;
}

// Returns the difference. An undefined derivative counts as zero. Values that
// are not finite in the plain run are not compared.
std::string difference(const at::Tensor& mine, const at::Tensor& truth) {
  if (!mine.defined() && !truth.defined()) {
    return "";
  }
  const auto full = mine.defined() ? whole(mine.detach()) : mine;
  const auto expected = truth.defined() ? truth.detach() : at::zeros_like(full);
  const auto got = mine.defined() ? full : at::zeros_like(expected);
  if (got.sizes() != expected.sizes()) {
    return c10::str("has shape ", got.sizes(), ", not ", expected.sizes());
  }
  if (got.scalar_type() != expected.scalar_type()) {
    return c10::str("is ", got.scalar_type(), ", not ", expected.scalar_type());
  }
  if (!at::isFloatingType(expected.scalar_type())) {
    return got.equal(expected) ? "" : "differs";
  }
  const auto finite = at::isfinite(expected);
  const auto compared = at::where(finite, got, expected);
  return at::allclose(compared, expected, 1e-7, 1e-8, /*equal_nan=*/true)
      ? ""
      : "differs";
}

std::string
compare(const Tensors& mine, const Tensors& truth, const char* what) {
  if (mine.size() != truth.size()) {
    return c10::str(mine.size(), " ", what, "s, not ", truth.size());
  }
  for (size_t i = 0; i < truth.size(); ++i) {
    const auto why = difference(mine[i], truth[i]);
    if (!why.empty()) {
      return c10::str(what, " ", i, " ", why);
    }
  }
  return "";
}

std::string compare(const Derivatives& mine, const Derivatives& truth) {
  auto why = compare(mine.values, truth.values, "value");
  if (why.empty()) {
    why = compare(mine.first, truth.first, "first derivative");
  }
  return why.empty() ? compare(mine.second, truth.second, "second derivative")
                     : why;
}

} // namespace

randomized::Verdict try_program(
    const Program& program,
    const std::vector<int64_t>& shape,
    bool twice) {
  Derivatives truth;
  try {
    truth = differentiate(program, program.operands, nullptr);
  } catch (const std::exception& e) {
    return randomized::Verdict::skipped(randomized::first_line(e.what()));
  }
  if (truth.first.empty()) {
    return randomized::Verdict::skipped("not differentiable");
  }
  return randomized::try_on_ranks(c10::multiply_integers(shape), [&](int64_t) {
    static const std::vector<std::string> names = {"a", "b"};
    const auto mesh = init_device_mesh(
        at::kCPU,
        shape,
        {names.begin(), names.begin() + static_cast<int64_t>(shape.size())});
    std::string difference;
    for (int round = 0; round < (twice ? 2 : 1); ++round) {
      Tensors placed;
      for (size_t i = 0; i < program.operands.size(); ++i) {
        placed.push_back(place(program.operands[i], mesh, program.layouts[i]));
      }
      const auto why = compare(differentiate(program, placed, &mesh), truth);
      if (!why.empty()) {
        difference = why + (round > 0 ? " when warm" : "");
      }
    }
    return difference;
  });
}

} // namespace dtensor::second_derivatives
