// SPDX-License-Identifier: BSD-3-Clause
// What a graph takes: the model's own tensors and the user's.
#include <dtensor/program/read_graph_impl.h>

#include <dtensor/error.h>
#include <dtensor/weights/weight_format_impl.h>

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include <map>
#include <utility>

namespace dtensor::detail {
namespace {

using Json = nlohmann::json;

// The size that it was exported with.
int64_t hint_of(const Json& expression) {
  constexpr int64_t kAny = 4;
  const auto hint = expression.find("hint");
  return hint != expression.end() && hint->is_object()
      ? hint->value("as_int", kAny)
      : kAny;
}

void read_meta(
    const Json& meta,
    const ProgramOrigin& origin,
    GraphInput& input) {
  const auto* format = exported_format(meta.at("dtype"));
  if (format == nullptr) {
    refuse_program(origin, c10::str(input.name, " has an unknown dtype"));
  }
  input.dtype = format->dtype;
  input.requires_grad = meta.at("requires_grad");
  for (const auto& size : meta.at("sizes")) {
    if (size.contains("as_int")) {
      input.sizes.push_back({size.at("as_int").get<int64_t>()});
    } else {
      input.sizes.push_back(
          {hint_of(size.at("as_expr")),
           symbol_of(size.at("as_expr").at("expr_str"))});
    }
  }
}

} // namespace

void refuse_program(const ProgramOrigin& origin, const std::string& why) {
  DTENSOR_CHECK_VALUE(
      false,
      "load_program",
      origin.path,
      " is no exported program that can be read: ",
      why,
      ". Write it with torch.export.save() of PyTorch 2.8 or newer.");
  TORCH_INTERNAL_ASSERT(false);
}

std::optional<NamedInput> read_input(
    const std::string& kind,
    const Json& spec,
    const Json& tensors,
    const ProgramOrigin& origin) {
  static const std::map<std::string, std::pair<InputKind, const char*>> kinds =
      {{"parameter", {InputKind::kParameter, "parameter_name"}},
       {"buffer", {InputKind::kBuffer, "buffer_name"}},
       {"tensor_constant", {InputKind::kConstant, "tensor_constant_name"}}};
  if (kind == "constant_input") {
    return std::nullopt; // calls have it among their arguments
  }
  GraphInput input;
  std::string name;
  if (const auto found = kinds.find(kind); found != kinds.end()) {
    input.kind = found->second.first;
    input.name = spec.at(found->second.second);
    name = spec.at("arg").at("name");
  } else if (kind == "user_input") {
    const auto& arg = spec.at("arg");
    const auto& key = arg.begin().key();
    const auto& value = arg.begin().value();
    input.is_tensor = key == "as_tensor";
    if (!input.is_tensor &&
        !(key.starts_with("as_sym_") && value.contains("as_name"))) {
      return std::nullopt; // a constant
    }
    name = value.at(input.is_tensor ? "name" : "as_name");
    input.name = name;
  } else {
    refuse_program(origin, c10::str("it has an input of kind ", kind));
  }
  if (input.is_tensor) {
    read_meta(tensors.at(name), origin, input);
  }
  return NamedInput{std::move(input), std::move(name)};
}

} // namespace dtensor::detail
