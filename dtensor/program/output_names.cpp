// SPDX-License-Identifier: BSD-3-Clause
// Names the results of a program by their place in Python's return value:
// dictionaries, lists, tuples and classes with fields. torch.export writes the
// return value as a tree.
#include <dtensor/program/read_graph_impl.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace dtensor::detail {
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
