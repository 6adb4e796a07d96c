// SPDX-License-Identifier: BSD-3-Clause
// Reads scopes around calls. In exported programs, a scope is an operator with
// a graph as an argument.
#include <dtensor/program/read_graph_impl.h>

#include <dtensor/program/graph_reader_impl.h>
#include <dtensor/weights/weight_format_impl.h>

#include <c10/core/Device.h>

namespace dtensor::detail {
namespace {

// Returns nothing for {"as_none": ...}.
std::optional<JsonView> value_in(JsonView arg, const char* kind) {
  return arg.find("as_none") ? std::nullopt : std::optional(arg.at(kind));
}

// (str device, dtype?, bool enabled, bool? cache_enabled, graph, inputs...)
BeginAutocast autocast_of(JsonView inputs, const ArgumentContext& context) {
  const auto arg = [&](size_t i) { return inputs.at(i).at("arg"); };
  BeginAutocast mode;
  mode.device = read_device(arg(0).at("as_string")).type();
  if (mode.device == context.exported_for()) {
    mode.device = context.device().type(); // moved like its tensors
  }
  if (const auto number = value_in(arg(1), "as_scalar_type")) {
    const auto* format = exported_format(number->integer());
    if (format == nullptr) {
      context.refuse("an unknown dtype number " + number->description());
    }
    mode.dtype = format->dtype;
  }
  // Other types are ignored, like torch.autocast() does with a warning.
  const bool is_low =
      !mode.dtype || *mode.dtype == c10::kHalf || *mode.dtype == c10::kBFloat16;
  mode.enabled = arg(2).at("as_bool").boolean() && is_low;
  if (const auto caches = value_in(arg(3), "as_bool")) {
    mode.caches = caches->boolean();
  }
  return mode;
}

} // namespace

std::optional<ScopedGraph> scoped_graph(
    JsonView call,
    const ArgumentContext& context) {
  const auto& target = call.at("target").text();
  const auto inputs = call.at("inputs");
  if (target == "torch.ops.higher_order.wrap_with_set_grad_enabled") {
    const bool enabled = inputs.at(0).at("arg").at("as_bool").boolean();
    return ScopedGraph{BeginGradMode{enabled}, 1};
  }
  if (target == "torch.ops.higher_order.wrap_with_autocast") {
    return ScopedGraph{autocast_of(inputs, context), 4};
  }
  return std::nullopt;
}

} // namespace dtensor::detail
