// SPDX-License-Identifier: BSD-3-Clause
// Operators that give a plain value: the same on every rank, because a program
// branches on it.
#include <dtensor/ops/registry.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/eq.h>

namespace dtensor {
namespace {

using namespace detail;

at::Tensor whole(const at::Tensor& t) {
  if (!is_dtensor(t)) {
    return t;
  }
  const auto& spec = spec_of(t);
  const Placements everywhere(spec->placements().size(), Replicate());
  return redistribute_local(
      local_of(t), spec, spec->with_placements(everywhere));
}

void item(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const auto self = torch::jit::pop(*stack).toTensor();
  stack->emplace_back(at::_local_scalar_dense(whole(self)));
}

void equal(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const auto other = torch::jit::pop(*stack).toTensor();
  const auto self = torch::jit::pop(*stack).toTensor();
  stack->emplace_back(
      self.sizes() == other.sizes() &&
      at::_local_scalar_dense(whole(at::eq(self, other).all())).toBool());
}

} // namespace

DTENSOR_RULES(value) {
  rules.kernel("_local_scalar_dense", item);
  rules.kernel("equal", equal);
  rules.keep_composite("allclose");
  rules.keep_composite("is_same_size");
}

} // namespace dtensor
