// SPDX-License-Identifier: BSD-3-Clause
// Matrix products. matmul and linear are one operator each: their local call
// is the plain operator, and nothing is decomposed into views.
#include <dtensor/ops/einsum.h>
#include <dtensor/ops/registry.h>

#include <algorithm>
#include <string>

namespace dtensor {
namespace {

// "bmk" for a matrix operand of matmul: batch letters from the right, '1'
// where the other operand is broadcast over.
std::string batch_letters(const OpInput& input, int64_t batch_dims) {
  const auto own = std::max<int64_t>(input.dim() - 2, 0);
  std::string letters;
  for (int64_t i = 0; i < own; ++i) {
    const auto letter = static_cast<char>('A' + (batch_dims - own + i));
    letters += input.sizes()[static_cast<size_t>(i)] == 1 ? '1' : letter;
  }
  return letters;
}

// torch.matmul: vectors contract with what they meet, batches broadcast.
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

Strategies matmul_rule(const OpCall& call, int64_t) {
  return einsum_strategies(matmul_equation(call.inputs[0], call.inputs[1]));
}

// (..., k) x (n, k) [+ (n)] -> (..., n). The bias goes where the output goes;
// beside a partial product only one rank may add it.
Strategies with_bias(Strategies products, int bias, const OpCall& call) {
  const auto& spec = call.inputs[static_cast<size_t>(bias)];
  const auto out_dim = call.outputs[0].dim();
  for (auto& s : products) {
    const auto out = s.outputs[0];
    auto placement = out;
    if (out.cuts()) {
      const auto dim = out.dim() - (out_dim - spec.dim());
      const auto& whole = call.outputs[0].sizes;
      const bool broadcast = dim < 0 ||
          spec.sizes()[static_cast<size_t>(dim)] !=
              whole[static_cast<size_t>(out.dim())];
      placement = broadcast ? Replicate() : out.with_dim(dim);
    }
    s.inputs.insert(s.inputs.begin() + bias, placement);
  }
  return products;
}

// "Axyk,nk->Axyn" for an input of four dimensions.
Einsum linear_equation(const OpInput& input) {
  std::string lead;
  for (int64_t i = 0; i + 1 < input.dim(); ++i) {
    lead += static_cast<char>('A' + i);
  }
  return {{lead + "k", "nk"}, lead + "n"};
}

Strategies linear_rule(const OpCall& call, int64_t) {
  auto strategies = einsum_strategies(linear_equation(call.inputs[0]));
  return call.inputs.size() < 3 ? strategies
                                : with_bias(std::move(strategies), 2, call);
}

// bias + a x b with the bias first: addmm, baddbmm, addmv and their kin.
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
  rules.einsum("dot", "k,k->");
  rules.einsum("vdot", "k,k->");
  rules.einsum("mv", "mk,k->m");
  rules.dim_rule("addmm", biased("mk,kn->mn")).as_region();
  rules.dim_rule("addmv", biased("mk,k->m"));
  rules.dim_rule("addr", biased("m,n->mn"));
  rules.dim_rule("baddbmm", biased("bmk,bkn->bmn"));
  rules.dim_rule("addbmm", biased("bmk,bkn->mn"));
  rules.dim_rule("matmul", matmul_rule);
  rules.dim_rule("linear", linear_rule);
}

} // namespace dtensor
