// SPDX-License-Identifier: BSD-3-Clause
// einsum and tensordot. The local call is the plain operator: LibTorch would
// decompose the call into products of flattened dimensions, whose shardings
// views cannot always keep.
#include <dtensor/ops/einsum.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <string>
#include <vector>

namespace dtensor {
namespace {

using Texts = std::vector<std::string>;

constexpr std::string_view kEllipsis = "...";

// Returns the letter for a dimension of an ellipsis, counted from the last one.
char ellipsis_letter(size_t from_last) {
  return static_cast<char>('!' + from_last); // before '1' and all letters
}

// Returns letters for `count` dimensions of an ellipsis.
std::string ellipsis_letters(size_t count) {
  std::string letters;
  for (size_t i = count; i > 0; --i) {
    letters += ellipsis_letter(i - 1);
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

// Returns true if the result may be a view of the operand.
bool has_one_operand(c10::ArrayRef<c10::IValue> args) {
  return args[1].toListRef().size() == 1;
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
  return is_dot ? std::vector{detail::dense({}, self.dtype())}
                : std::vector<OutputMeta>();
}

Strategies tensordot_rule(const OpCall& call, int64_t) {
  return einsum_strategies(tensordot_equation(call));
}

} // namespace

DTENSOR_RULES(einsum) {
  rules.dim_rule("einsum", einsum_rule)
      .with_kernel(detail::einsum_of_one, has_one_operand)
      .with_traits({.result_order_varies = true});
  rules.dim_rule("tensordot", tensordot_rule).with_meta(tensordot_meta);
}

} // namespace dtensor
