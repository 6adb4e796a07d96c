// SPDX-License-Identifier: BSD-3-Clause
// Reads the inputs of a graph: the model's own tensors and the inputs of the
// user.
#include <dtensor/program/read_graph_impl.h>

#include <dtensor/weights/weight_contents_impl.h>
#include <dtensor/weights/weight_format_impl.h>

#include <dtensor/format_text.h>

#include <algorithm>
#include <map>
#include <utility>

namespace dtensor::detail {
namespace {

// Returns the size at export.
int64_t hint_of(JsonView expression) {
  constexpr int64_t kAny = 4;
  const auto hint = expression.find("hint");
  const auto size =
      hint && hint->is_object() ? hint->find("as_int") : std::nullopt;
  return size ? size->integer(0) : kAny;
}

void read_size(JsonView size, GraphInput& input) {
  InputSize read;
  if (const auto number = size.find("as_int")) {
    read.value = number->integer(0);
  } else {
    const auto expression = size.at("as_expr");
    read = {hint_of(expression), symbol_of(expression.at("expr_str").text())};
  }
  Sizes sizes;
  for (const auto& before : input.sizes) {
    sizes.push_back(before.value);
  }
  if (!add_size(sizes, static_cast<uint64_t>(read.value))) {
    size.refuse(shown_name(input.name) + " has too many elements");
  }
  input.sizes.push_back(std::move(read));
}

void read_tensor(JsonView meta, GraphInput& input) {
  const auto dtype = meta.at("dtype");
  const auto* format = exported_format(dtype.integer());
  if (format == nullptr) {
    dtype.refuse(shown_name(input.name) + " has an unknown dtype");
  }
  input.dtype = format->dtype;
  input.requires_grad = meta.at("requires_grad").boolean();
  for (const auto& size : meta.at("sizes").elements()) {
    read_size(size, input);
  }
}

// Checks a name such as "layers.0.fc.weight".
void check_name(JsonView name) {
  const auto& text = name.text();
  const auto parts = static_cast<size_t>(std::ranges::count(text, '.')) + 1;
  if (parts > kMaxNameParts) {
    name.refuse(detail::format_text(
        "the name has {} components, but at most {} are allowed",
        parts,
        kMaxNameParts));
  }
  if (text.empty() || text.front() == '.' || text.back() == '.' ||
      text.find("..") != std::string::npos) {
    name.refuse("the name " + quoted_json(text) + " has an empty component");
  }
}

} // namespace

std::optional<ValueMeta> read_meta(JsonView about) {
  const auto* format = exported_format(about.at("dtype").integer());
  if (format == nullptr) {
    return std::nullopt;
  }
  Sizes sizes;
  for (const auto& size : about.at("sizes").elements()) {
    const auto number = size.find("as_int");
    const auto value =
        number ? number->integer(0) : hint_of(size.at("as_expr"));
    if (!add_size(sizes, static_cast<uint64_t>(value))) {
      return std::nullopt;
    }
  }
  return ValueMeta{format->dtype, {sizes.begin(), sizes.end()}};
}

std::optional<NamedInput>
read_input(JsonView given, JsonView tensors, const ProgramOrigin& origin) {
  static const std::map<std::string, std::pair<InputKind, const char*>> kinds =
      {{"parameter", {InputKind::kParameter, "parameter_name"}},
       {"buffer", {InputKind::kBuffer, "buffer_name"}},
       {"tensor_constant", {InputKind::kConstant, "tensor_constant_name"}}};
  const auto [kind, spec] = given.only_member();
  if (kind == "constant_input") {
    return std::nullopt; // a call has the constant among its arguments
  }
  GraphInput input;
  std::string name;
  if (const auto found = kinds.find(kind); found != kinds.end()) {
    const auto full_name = spec.at(found->second.second);
    check_name(full_name);
    input.kind = found->second.first;
    input.name = full_name.text();
    name = spec.at("arg").at("name").text();
  } else if (kind == "user_input") {
    const auto [key, value] = spec.at("arg").only_member();
    input.is_tensor = key == "as_tensor";
    if (!input.is_tensor &&
        !(key.starts_with("as_sym_") && value.find("as_name"))) {
      return std::nullopt; // a constant
    }
    name = value.at(input.is_tensor ? "name" : "as_name").text();
    input.name = name;
  } else {
    refuse_program(
        origin, "it has an input of unsupported kind " + quoted_json(kind));
  }
  if (input.is_tensor) {
    read_tensor(tensors.at(name), input);
  }
  return NamedInput{std::move(input), std::move(name)};
}

} // namespace dtensor::detail
