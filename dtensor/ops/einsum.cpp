// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/einsum.h>

#include <c10/util/Exception.h>

#include <algorithm>

namespace dtensor {
namespace {

Placement placement_of(const std::string& dims, char letter) {
  const auto at = dims.find(letter);
  return at == std::string::npos ? Replicate()
                                 : Shard(static_cast<int64_t>(at));
}

Strategy letter_strategy(const Einsum& equation, char letter) {
  Strategy s;
  const auto out = placement_of(equation.output, letter);
  s.outputs.push_back(out.is_replicate() ? Partial(ReduceOp::kSum) : out);
  for (const auto& dims : equation.inputs) {
    s.inputs.push_back(placement_of(dims, letter));
  }
  return s;
}

// Letters in order of first appearance, '1' left out.
std::string letters_of(const Einsum& equation) {
  std::string letters;
  for (const auto& dims : equation.inputs) {
    for (const char c : dims) {
      if (c != '1' && letters.find(c) == std::string::npos) {
        letters.push_back(c);
      }
    }
  }
  return letters;
}

} // namespace

Einsum Einsum::parse(std::string_view equation) {
  const auto arrow = equation.find("->");
  TORCH_INTERNAL_ASSERT(
      arrow != std::string_view::npos,
      "no -> in einsum ",
      std::string(equation));
  Einsum parsed;
  parsed.output = equation.substr(arrow + 2);
  auto left = equation.substr(0, arrow);
  while (true) {
    const auto comma = left.find(',');
    parsed.inputs.emplace_back(left.substr(0, comma));
    if (comma == std::string_view::npos) {
      return parsed;
    }
    left = left.substr(comma + 1);
  }
}

Strategies einsum_strategies(const Einsum& equation) {
  Strategies strategies;
  for (const char letter : letters_of(equation)) {
    strategies.push_back(letter_strategy(equation, letter));
  }
  for (size_t i = 0; i < equation.inputs.size(); ++i) {
    Strategy linear;
    linear.outputs.push_back(Partial(ReduceOp::kSum));
    linear.inputs.resize(equation.inputs.size(), Replicate());
    linear.inputs[i] = Partial(ReduceOp::kSum);
    strategies.push_back(std::move(linear));
  }
  return strategies;
}

Strategies einsum_strategies(std::string_view equation) {
  return einsum_strategies(Einsum::parse(equation));
}

} // namespace dtensor
