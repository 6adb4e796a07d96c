// SPDX-License-Identifier: BSD-3-Clause
// Reads the inputs of a graph: the model's own tensors and the inputs of the
// user. Names the results by their place in Python's return value:
// dictionaries, lists, tuples and classes with fields. torch.export writes the
// return value as a tree.
#include <dtensor/program/read_graph_impl.h>

#include <dtensor/weights/weight_contents_impl.h>
#include <dtensor/weights/weight_format_impl.h>

#include <c10/util/Exception.h>
#include <dtensor/format_text.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <memory>
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
    name.refuse(
        "the name has {} components, but at most {} are allowed",
        parts,
        kMaxNameParts);
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

namespace {

std::string text_of(JsonView key) {
  return key.is_text() ? key.text() : key.json().dump();
}

// Parses a context that a class wrote as JSON. Returns null for other texts.
std::unique_ptr<JsonDocument> parsed(JsonView context) {
  try {
    return context.is_text()
        ? std::make_unique<JsonDocument>(context.text(), JsonOrigin{})
        : nullptr;
  } catch (const c10::ValueError&) {
    return nullptr;
  }
}

bool are_keys(const std::optional<JsonView>& list, size_t count) {
  if (!list || !list->is_array() || list->size() != count) {
    return false;
  }
  const auto keys = list->elements();
  return std::ranges::none_of(
      keys, [](JsonView key) { return key.is_array() || key.is_object(); });
}

class OutputNames {
 public:
  explicit OutputNames(std::optional<JsonView> namedtuples)
      : namedtuples_(namedtuples) {}

  void add(JsonView node, const std::string& path) {
    if (node.at("type").is_null()) {
      names.push_back(path);
      return;
    }
    const auto children = node.at("children_spec").elements();
    const auto keys = keys_of(node.at("context"), children.size());
    for (size_t i = 0; i < children.size(); ++i) {
      add(children[i], path.empty() ? keys[i] : path + "." + keys[i]);
    }
  }

  std::vector<std::string> names;

 private:
  // Returns the keys or fields of `count` children, or their positions.
  std::vector<std::string> keys_of(JsonView context, size_t count) const {
    const auto document = parsed(context);
    auto about = document ? std::optional(document->root()) : std::nullopt;
    if (about && about->is_object() && about->find("dict_context")) {
      about = about->at("dict_context"); // a defaultdict
    } else if (about && about->is_text() && namedtuples_) {
      const auto fields = namedtuples_->find(about->text());
      about = fields ? fields->find("field_names") : std::nullopt;
    } else if (
        about && about->is_array() && about->size() > 0 &&
        about->at(size_t{0}).is_array()) {
      about = about->at(size_t{0}); // a dataclass; other fields are None
    }
    std::vector<std::string> keys;
    for (size_t i = 0; i < count; ++i) {
      keys.push_back(
          are_keys(about, count) ? text_of(about->at(i)) : std::to_string(i));
    }
    return keys;
  }

  std::optional<JsonView> namedtuples_;
};

} // namespace

std::vector<std::string>
output_names(JsonView module, size_t count, const ProgramOrigin& origin) {
  OutputNames found(module.find("treespec_namedtuple_fields"));
  for (const auto& call : module.at("module_call_graph").elements()) {
    const auto signature = call.at("signature");
    if (!call.at("fqn").text().empty() || !signature.is_object()) {
      continue;
    }
    const JsonDocument tree(
        signature.at("out_spec").text(),
        {"load_program", origin.path, origin.part + ": out_spec"});
    found.add(tree.root().at(1), ""); // [1, root]
  }
  auto names = std::move(found.names);
  if (names.size() != count) {
    names.clear();
    for (size_t i = 0; i < count; ++i) {
      names.push_back(std::to_string(i));
    }
  }
  return names;
}

} // namespace dtensor::detail
