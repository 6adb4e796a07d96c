// SPDX-License-Identifier: BSD-3-Clause
// Scopes around calls, which exported programs have as operators that are given
// a graph.
#include <dtensor/program/read_graph_impl.h>
#include <dtensor/weights/weight_format_impl.h>

#include <c10/core/Device.h>

#include <nlohmann/json.hpp>

namespace dtensor::detail {
namespace {

using Json = nlohmann::json;

template <class T>
std::optional<T> optional_of(const Json& arg, const char* kind) {
  return arg.contains("as_none") ? std::nullopt
                                 : std::optional(arg.at(kind).get<T>());
}

// (str device, dtype?, bool enabled, bool? cache_enabled, graph, inputs...)
BeginAutocast autocast_of(const Json& inputs, const ArgumentContext& context) {
  const auto arg = [&](size_t i) -> const Json& {
    return inputs.at(i).at("arg");
  };
  BeginAutocast mode;
  mode.device = c10::Device(arg(0).at("as_string").get<std::string>()).type();
  if (mode.device == context.exported_for()) {
    mode.device = context.device().type(); // it has moved, as its tensors have
  }
  if (const auto number = optional_of<int64_t>(arg(1), "as_scalar_type")) {
    const auto* format = exported_format(*number);
    if (format == nullptr) {
      context.refuse("a dtype of number " + std::to_string(*number));
    }
    mode.dtype = format->dtype;
  }
  // As torch.autocast(), which warns of other types and does nothing.
  const bool is_low =
      !mode.dtype || *mode.dtype == c10::kHalf || *mode.dtype == c10::kBFloat16;
  mode.enabled = arg(2).at("as_bool").get<bool>() && is_low;
  mode.caches = optional_of<bool>(arg(3), "as_bool");
  return mode;
}

} // namespace

std::optional<ScopedGraph> scoped_graph(
    const Json& call,
    const ArgumentContext& context) {
  const auto& target = call.at("target").get_ref<const std::string&>();
  const auto& inputs = call.at("inputs");
  if (target == "torch.ops.higher_order.wrap_with_set_grad_enabled") {
    const bool enabled = inputs.at(0).at("arg").at("as_bool");
    return ScopedGraph{BeginGradMode{enabled}, 1};
  }
  if (target == "torch.ops.higher_order.wrap_with_autocast") {
    return ScopedGraph{autocast_of(inputs, context), 4};
  }
  return std::nullopt;
}

} // namespace dtensor::detail
