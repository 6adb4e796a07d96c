// SPDX-License-Identifier: BSD-3-Clause
// Matrix products, einsum and tensordot. Their local call is the plain
// operator: LibTorch would decompose matmul, linear and einsum into products of
// flattened dimensions, whose shardings views cannot always keep.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/einsum.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <ATen/ExpandUtils.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <string>
#include <vector>

namespace dtensor {
namespace {

using namespace detail;

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

// Checks that the bias expands to the global shape of the product. PyTorch's
// Python inference of shapes broadcasts both.
void check_added(const OpCall& call, std::string_view equation) {
  const auto comma = equation.find(',');
  const auto arrow = equation.find("->");
  Sizes product;
  for (const char letter : equation.substr(arrow + 2)) {
    const auto in_first = equation.substr(0, comma).find(letter);
    product.push_back(
        in_first != std::string_view::npos
            ? call.inputs[1].sizes()[in_first]
            : call.inputs[2].sizes()[equation.find(letter) - comma - 1]);
  }
  const auto& bias = *call.inputs[0].spec;
  DTENSOR_CHECK(
      at::is_expandable_to(bias.sizes(), product),
      "[{}] cannot add {} to a product of shape {}. Pass a tensor that expands "
      "to that shape.",
      call.name(),
      bias,
      at::IntArrayRef(product));
}

// Returns the rule of bias + a x b with the bias as first argument: addmm,
// baddbmm, addmv and similar operators.
DimRule biased(std::string_view equation) {
  return [strategies = einsum_strategies(equation),
          text = std::string(equation)](const OpCall& call, int64_t) {
    check_added(call, text);
    return with_bias(strategies, 0, call);
  };
}

// --- einsum and tensordot ----------------------------------------------------

using Texts = std::vector<std::string>;

constexpr std::string_view kEllipsis = "...";

// Returns letters for `count` dimensions of an ellipsis, counted from the last
// one. They come before '1' and all letters of equations.
std::string ellipsis_letters(size_t count) {
  std::string letters;
  for (size_t i = count; i > 0; --i) {
    letters += static_cast<char>('!' + i - 1);
  }
  return letters;
}

// Replaces an ellipsis by letters for `count` dimensions.
void expand_ellipsis(std::string& dims, size_t count) {
  const auto at = dims.find(kEllipsis);
  if (at != std::string::npos) {
    dims.replace(at, kEllipsis.size(), ellipsis_letters(count));
  }
}

Texts split(const std::string& text) {
  Texts parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Returns the number of dimensions that an ellipsis in `dims` stands for.
size_t ellipsis_dims(const std::string& dims, const OpInput& input) {
  return dims.find(kEllipsis) == std::string::npos
      ? 0
      : static_cast<size_t>(input.dim()) + kEllipsis.size() - dims.size();
}

// Returns the output of an equation without one: the dimensions of ellipses,
// and the letters that occur once, in alphabetical order.
std::string implicit_output(const Texts& inputs, size_t ellipsis) {
  std::string letters;
  for (const auto& dims : inputs) {
    letters += dims;
  }
  std::string once;
  for (const char c : letters) {
    if (std::ranges::count(letters, c) == 1 && c > '1') {
      once += c;
    }
  }
  std::ranges::sort(once);
  return ellipsis_letters(ellipsis) + once;
}

// Marks dimensions that must not be sharded by '1': those of size 1, which may
// be broadcast, and both dimensions of a diagonal.
void mark_unsharded(Einsum& equation, const std::vector<OpInput>& inputs) {
  std::string diagonals;
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto& dims = equation.inputs[i];
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims.find(dims[d], d + 1) != std::string::npos) {
        diagonals += dims[d];
      }
    }
    for (size_t d = 0; d < dims.size(); ++d) {
      dims[d] = inputs[i].sizes()[d] == 1 ? '1' : dims[d];
    }
  }
  const auto is_diagonal = [&](char c) {
    return diagonals.find(c) != std::string::npos;
  };
  for (auto& dims : equation.inputs) {
    std::ranges::replace_if(dims, is_diagonal, '1');
  }
}

// Parses the equation of a call, which LibTorch has accepted.
Einsum parse(std::string text, const std::vector<OpInput>& inputs) {
  std::erase(text, ' ');
  const auto arrow = text.find("->");
  Einsum equation{split(text.substr(0, arrow)), ""};
  size_t ellipsis = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto& dims = equation.inputs[i];
    const auto count = ellipsis_dims(dims, inputs[i]);
    expand_ellipsis(dims, count);
    ellipsis = std::max(ellipsis, count);
  }
  if (arrow == std::string::npos) {
    equation.output = implicit_output(equation.inputs, ellipsis);
  } else {
    equation.output = text.substr(arrow + 2);
    expand_ellipsis(equation.output, ellipsis);
  }
  mark_unsharded(equation, inputs);
  return equation;
}

Strategies einsum_rule(const OpCall& call, int64_t) {
  return einsum_strategies(
      parse(call.arg("equation").toStringRef(), call.inputs));
}

// True if LibTorch's decomposition computes the call: its result may be a view
// of the operand, or autocast determines the dtype of each product.
bool decomposes_einsum(c10::ArrayRef<c10::IValue> args) {
  return args[1].toListRef().size() == 1 || is_autocast(args);
}

size_t position(int64_t dim, const OpInput& input) {
  return static_cast<size_t>(c10::maybe_wrap_dim(dim, input.dim()));
}

// Returns the equation of tensordot: the dimensions that remain of self and of
// other, in this order.
Einsum tensordot_equation(const OpCall& call) {
  Einsum equation;
  char next = 'A';
  for (const auto& input : call.inputs) {
    equation.inputs.emplace_back();
    for (int64_t d = 0; d < input.dim(); ++d) {
      equation.inputs.back() += next++;
    }
  }
  auto& self = equation.inputs[0];
  auto& other = equation.inputs[1];
  equation.output = self + other;
  const auto dims_self = call.ints_arg("dims_self");
  const auto dims_other = call.ints_arg("dims_other");
  for (size_t i = 0; i < dims_self.size(); ++i) {
    const auto a = position(dims_self[i], call.inputs[0]);
    const auto b = position(dims_other[i], call.inputs[1]);
    std::erase(equation.output, self[a]);
    std::erase(equation.output, other[b]);
    other[b] = self[a];
  }
  mark_unsharded(equation, call.inputs);
  return equation;
}

// Returns the shape of a product that LibTorch computes by dot, which has no
// meta kernel.
std::vector<OutputMeta> tensordot_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto& other = *call.inputs[1].spec;
  const auto count = call.ints_arg("dims_self").size();
  const bool is_dot = static_cast<int64_t>(count) == self.dim() &&
      self.dim() == other.dim() && self.numel() == other.numel() &&
      self.dtype() == other.dtype();
  return is_dot ? std::vector{dense({}, self.dtype())}
                : std::vector<OutputMeta>();
}

Strategies tensordot_rule(const OpCall& call, int64_t) {
  return einsum_strategies(tensordot_equation(call));
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
      .with_local_kernel(boxed(addmv_local));
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

DTENSOR_RULES(einsum) {
  rules.dim_rule("einsum", einsum_rule)
      .with_kernel(einsum_decomposed, decomposes_einsum)
      .with_traits({.result_order_varies = true});
  rules.dim_rule("tensordot", tensordot_rule)
      .with_meta(tensordot_meta)
      .with_kernel(tensordot_decomposed, is_autocast);
}

} // namespace dtensor
