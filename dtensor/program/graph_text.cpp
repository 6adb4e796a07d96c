// SPDX-License-Identifier: BSD-3-Clause
// Parses names and expressions in the notation of exported programs.
#include <dtensor/program/read_graph_impl.h>

#include <string_view>

namespace dtensor::detail {
namespace {

constexpr std::string_view kOperators = "torch.ops.";

} // namespace

std::optional<c10::OperatorName> operator_name(const std::string& target) {
  if (!target.starts_with(kOperators)) {
    return std::nullopt;
  }
  const auto rest = target.substr(kOperators.size());
  const auto first = rest.find('.');
  const auto last = rest.rfind('.');
  if (first == std::string::npos || first == last) {
    return std::nullopt;
  }
  const auto overload = rest.substr(last + 1);
  return c10::OperatorName(
      rest.substr(0, first) + "::" + rest.substr(first + 1, last - first - 1),
      overload == "default" ? "" : overload);
}

std::string symbol_of(const std::string& expression) {
  constexpr std::string_view kBegin = "Symbol('";
  const auto end = expression.find('\'', kBegin.size());
  const bool is_symbol = expression.starts_with(kBegin) &&
      end != std::string::npos && expression.find(')') + 1 == expression.size();
  return is_symbol ? expression.substr(kBegin.size(), end - kBegin.size())
                   : expression;
}

std::string innermost_module(const std::string& stack) {
  const auto entry = stack.substr(stack.rfind(';') + 1);
  const auto begin = entry.find(',');
  const auto end = entry.find(',', begin + 1);
  return begin == std::string::npos || end == std::string::npos
      ? ""
      : entry.substr(begin + 1, end - begin - 1);
}

} // namespace dtensor::detail
