// SPDX-License-Identifier: BSD-3-Clause
// Matrix products. matmul and linear are not decomposed into views: their local
// call is the plain operator.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/einsum.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <string>

namespace dtensor {
namespace {

using detail::dense;
using detail::operand_shard;

// Returns the letters of a matrix operand of matmul ("bmk"): batch letters from
// the right, '1' where the operand is broadcast.
std::string batch_letters(const OpInput& input, int64_t batch_dims) {
  const auto own = std::max<int64_t>(input.dim() - 2, 0);
  std::string letters;
  for (int64_t i = 0; i < own; ++i) {
    const auto letter = static_cast<char>('A' + (batch_dims - own + i));
    letters += input.sizes()[static_cast<size_t>(i)] == 1 ? '1' : letter;
  }
  return letters;
}

// Returns the einsum of torch.matmul: vectors contract with the other operand,
// and batches broadcast.
Einsum matmul_equation(const OpInput& a, const OpInput& b) {
  const auto batch = std::max<int64_t>({a.dim() - 2, b.dim() - 2, 0});
  Einsum equation;
  equation.inputs.push_back(
      batch_letters(a, batch) + (a.dim() == 1 ? "k" : "mk"));
  equation.inputs.push_back(
      batch_letters(b, batch) + (b.dim() == 1 ? "k" : "kn"));
  for (int64_t i = 0; i < batch; ++i) {
    equation.output += static_cast<char>('A' + i);
  }
  equation.output += a.dim() == 1 ? "" : "m";
  equation.output += b.dim() == 1 ? "" : "n";
  return equation;
}

std::vector<OutputMeta> dot_meta(const OpCall& call) {
  const auto& a = *call.inputs[0].spec;
  const auto& b = *call.inputs[1].spec;
  DTENSOR_CHECK(
      a.dim() == 1 && b.dim() == 1 && a.numel() == b.numel() &&
          a.dtype() == b.dtype(),
      "[{}] needs two vectors of the same length and dtype, got {} and {}. "
      "Reshape or convert them.",
      call.name(),
      a,
      b);
  return {dense({}, a.dtype())};
}

// Returns the meta result of a product. For a product of vectors LibTorch calls
// dot, which has no meta kernel.
std::vector<OutputMeta> product_meta(const OpCall& call) {
  const bool vectors = call.inputs.size() == 2 && call.inputs[0].dim() == 1 &&
      call.inputs[1].dim() == 1;
  return vectors ? dot_meta(call) : std::vector<OutputMeta>{};
}

std::vector<OutputMeta> addbmm_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto& a = *call.inputs[1].spec;
  const auto& b = *call.inputs[2].spec;
  DTENSOR_CHECK(
      a.dim() == 3 && b.dim() == 3 && a.sizes()[0] == b.sizes()[0] &&
          a.sizes()[2] == b.sizes()[1] && a.dtype() == b.dtype() &&
          self.dtype() == a.dtype(),
      "[{}] needs batches of matrices that can be multiplied, got {} and {}. "
      "Reshape or convert them.",
      call.name(),
      a,
      b);
  const Sizes sizes{a.sizes()[1], b.sizes()[2]};
  at::infer_size(self.sizes(), sizes); // throws if it does not broadcast
  return {dense(sizes, a.dtype())};
}

Strategies matmul_rule(const OpCall& call, int64_t) {
  return einsum_strategies(matmul_equation(call.inputs[0], call.inputs[1]));
}

// Adds a bias to the strategies of (..., k) x (n, k) [+ (n)] -> (..., n). The
// bias has the sharding of the output. Beside a partial product, only one rank
// may add the bias.
Strategies with_bias(Strategies products, int bias, const OpCall& call) {
  const auto sizes = call.inputs[static_cast<size_t>(bias)].sizes();
  for (auto& s : products) {
    const auto out = s.outputs[0];
    s.inputs.insert(
        s.inputs.begin() + bias,
        out.is_sharded()
            ? operand_shard(sizes, call.outputs[0].sizes, out.dim())
            : out);
  }
  return products;
}

// Returns the einsum of linear: "Axyk,nk->Axyn" for an input of four
// dimensions; the weight may be a vector.
Einsum linear_equation(const OpInput& input, const OpInput& weight) {
  std::string lead;
  for (int64_t i = 0; i + 1 < input.dim(); ++i) {
    lead += static_cast<char>('A' + i);
  }
  return weight.dim() == 1 ? Einsum{{lead + "k", "k"}, lead}
                           : Einsum{{lead + "k", "nk"}, lead + "n"};
}

Strategies linear_rule(const OpCall& call, int64_t) {
  auto strategies =
      einsum_strategies(linear_equation(call.inputs[0], call.inputs[1]));
  return call.inputs.size() < 3 ? strategies
                                : with_bias(std::move(strategies), 2, call);
}

// Returns the rule of bias + a x b with the bias as first argument: addmm,
// baddbmm, addmv and similar operators.
DimRule biased(std::string_view equation) {
  return
      [strategies = einsum_strategies(equation)](const OpCall& call, int64_t) {
        return with_bias(strategies, 0, call);
      };
}

} // namespace

DTENSOR_RULES(matmul) {
  rules.einsum("mm", "mk,kn->mn");
  rules.einsum("bmm", "bmk,bkn->bmn");
  rules.einsum("dot", "k,k->").with_meta(dot_meta);
  rules.einsum("vdot", "k,k->").with_meta(dot_meta);
  rules.einsum("mv", "mk,k->m");
  rules.dim_rule("addmm", biased("mk,kn->mn"))
      .as_region()
      .with_traits(
          {.product = true,
           .boundary = BoundaryRole{.input = 1, .parameter = 2, .bias = 0}});
  rules.dim_rule("addmv", biased("mk,k->m"))
      .with_local_kernel(detail::boxed(detail::addmv_local));
  rules.dim_rule("addr", biased("m,n->mn"));
  rules.dim_rule("baddbmm", biased("bmk,bkn->bmn"));
  rules.dim_rule("addbmm", biased("bmk,bkn->mn")).with_meta(addbmm_meta);
  rules.dim_rule("matmul", matmul_rule)
      .with_meta(product_meta)
      .with_traits(
          {.product = true,
           .boundary = BoundaryRole{.input = 0, .parameter = 1}});
  rules.dim_rule("linear", linear_rule)
      .with_meta(product_meta)
      .with_traits(
          {.product = true,
           .boundary = BoundaryRole{
               .input = 0, .parameter = 1, .bias = 2, .transposed = true}});
}

} // namespace dtensor
