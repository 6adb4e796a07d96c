// SPDX-License-Identifier: BSD-3-Clause
// Where results stand in what Python returned: dictionaries, lists, tuples and
// classes with fields, which torch.export writes as a tree.
#include <dtensor/program/read_graph_impl.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace dtensor::detail {
namespace {

using Json = nlohmann::json;

std::string text_of(const Json& key) {
  return key.is_string() ? key.get<std::string>() : key.dump();
}

bool are_keys(const Json& list, size_t count) {
  return list.is_array() && list.size() == count &&
      std::none_of(list.begin(), list.end(), [](const Json& key) {
           return key.is_structured();
         });
}

// Of the children of a node: keys or fields, else positions.
std::vector<std::string> keys_of(const Json& node, const Json& namedtuples) {
  const auto count = node.at("children_spec").size();
  const auto& context = node.at("context");
  auto about = context.is_string()
      ? Json::parse(context.get_ref<const std::string&>(), nullptr, false)
      : Json();
  if (about.is_object() && about.contains("dict_context")) {
    about = Json(about.at("dict_context")); // a defaultdict
  } else if (about.is_string() && namedtuples.contains(text_of(about))) {
    about = Json(namedtuples.at(text_of(about)).at("field_names"));
  } else if (about.is_array() && !about.empty() && about[0].is_array()) {
    about = Json(about[0]); // a dataclass; the other fields are None
  }
  std::vector<std::string> keys;
  for (size_t i = 0; i < count; ++i) {
    keys.push_back(
        are_keys(about, count) ? text_of(about[i]) : std::to_string(i));
  }
  return keys;
}

void add_names(
    const Json& node,
    const Json& namedtuples,
    const std::string& path,
    std::vector<std::string>& names) {
  if (node.at("type").is_null()) {
    names.push_back(path);
    return;
  }
  const auto keys = keys_of(node, namedtuples);
  for (size_t i = 0; i < keys.size(); ++i) {
    add_names(
        node.at("children_spec").at(i),
        namedtuples,
        path.empty() ? keys[i] : path + "." + keys[i],
        names);
  }
}

} // namespace

std::vector<std::string> output_names(const Json& module, size_t count) {
  std::vector<std::string> names;
  for (const auto& call : module.at("module_call_graph")) {
    const auto& signature = call.at("signature");
    if (!call.at("fqn").get_ref<const std::string&>().empty() ||
        !signature.is_object()) {
      continue;
    }
    const auto tree = Json::parse(
        signature.at("out_spec").get_ref<const std::string&>()); // [1, root]
    add_names(
        tree.at(1),
        module.value("treespec_namedtuple_fields", Json::object()),
        "",
        names);
  }
  if (names.size() != count) {
    names.clear();
    for (size_t i = 0; i < count; ++i) {
      names.push_back(std::to_string(i));
    }
  }
  return names;
}

} // namespace dtensor::detail
