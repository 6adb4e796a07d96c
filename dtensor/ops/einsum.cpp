// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/einsum.h>

#include <dtensor/error.h>

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

// Returns the letters in order of first appearance, without '1'.
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

constexpr const char* kHow =
    ". Write inputs and output as \"mk,kn->mn\", one letter per dimension.";

void check_dims(const std::string& dims, std::string_view equation) {
  for (size_t i = 0; i < dims.size(); ++i) {
    const char c = dims[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    DTENSOR_CHECK_VALUE(
        letter || c == '1',
        "[einsum] \"{}\": '{}' is neither a letter nor 1{}",
        equation,
        c,
        kHow);
    DTENSOR_CHECK_VALUE(
        !letter || dims.find(c, i + 1) == std::string::npos,
        "[einsum] \"{}\": the letter {} occurs twice in one tensor{}",
        equation,
        c,
        kHow);
  }
}

void check(const Einsum& parsed, std::string_view equation) {
  check_dims(parsed.output, equation);
  std::string known = "1";
  for (const auto& dims : parsed.inputs) {
    check_dims(dims, equation);
    known += dims;
  }
  for (const char c : parsed.output) {
    DTENSOR_CHECK_VALUE(
        known.find(c) != std::string::npos,
        "[einsum] \"{}\": no input has the letter {} of the output{}",
        equation,
        c,
        kHow);
  }
}

} // namespace

Einsum Einsum::parse(std::string_view equation) {
  const auto arrow = equation.find("->");
  DTENSOR_CHECK_VALUE(
      arrow != std::string_view::npos,
      "[einsum] \"{}\" has no ->{}",
      equation,
      kHow);
  Einsum parsed;
  parsed.output = equation.substr(arrow + 2);
  auto left = equation.substr(0, arrow);
  while (true) {
    const auto comma = left.find(',');
    parsed.inputs.emplace_back(left.substr(0, comma));
    if (comma == std::string_view::npos) {
      check(parsed, equation);
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
