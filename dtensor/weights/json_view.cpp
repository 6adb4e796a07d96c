// SPDX-License-Identifier: BSD-3-Clause
// Implements typed access to a value of a JSON document.
#include <dtensor/weights/json_document_impl.h>

#include <dtensor/format_text.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace dtensor::detail {
namespace {

using Json = nlohmann::json;

} // namespace

std::string quoted_json(std::string_view text) {
  const auto begin = Json(std::string(text.substr(0, kLongestJsonQuote)))
                         .dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > kLongestJsonQuote ? begin + "..." : begin;
}

std::string shown_name(std::string_view name) {
  constexpr size_t kLongestName = 200;
  const bool is_plain = name.size() <= kLongestName &&
      std::ranges::all_of(name, [](char c) { return c > ' ' && c != '\x7f'; });
  return is_plain ? std::string(name) : quoted_json(name);
}

void JsonView::refuse(const std::string& why) const {
  document_->refuse(place(), why);
}

void JsonView::expect(bool is_of_kind, const char* kind) const {
  if (!is_of_kind) {
    refuse("expected {}, got {}", kind, description());
  }
}

std::string JsonView::place() const {
  return document_->place_of(*value_);
}

std::string JsonView::description() const {
  switch (value_->type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return value_->empty() ? "an empty object" : "an object";
    case Json::value_t::array:
      return value_->empty() ? "an empty array" : "an array";
    case Json::value_t::string:
      return "a string: " + quoted_json(value_->get_ref<const std::string&>());
    case Json::value_t::boolean:
      return value_->get<bool>() ? "true" : "false";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return value_->dump();
    default:
      return "a number with a fraction or an exponent: " + value_->dump();
  }
}

bool JsonView::is_null() const {
  return value_->is_null();
}
bool JsonView::is_array() const {
  return value_->is_array();
}
bool JsonView::is_object() const {
  return value_->is_object();
}
bool JsonView::is_text() const {
  return value_->is_string();
}
bool JsonView::is_boolean() const {
  return value_->is_boolean();
}
bool JsonView::is_integer() const {
  return value_->is_number_integer();
}
bool JsonView::is_number() const {
  return value_->is_number();
}

std::optional<JsonView> JsonView::find(std::string_view key) const {
  expect(is_object(), "an object");
  const auto& members = value_->get_ref<const Json::object_t&>();
  const auto found = members.find(key);
  return found == members.end()
      ? std::nullopt
      : std::optional(JsonView(found->second, *document_));
}

JsonView JsonView::at(std::string_view key) const {
  const auto found = find(key);
  if (!found) {
    refuse(quoted_json(key) + " is missing");
  }
  return *found;
}

JsonView JsonView::at(size_t index) const {
  expect(is_array(), "an array");
  if (index >= value_->size()) {
    refuse(
        "expected more than {}, got {}",
        pluralize(index, "element"),
        value_->size());
  }
  return {(*value_)[index], *document_};
}

size_t JsonView::size() const {
  expect(is_array() || is_object(), "an array or an object");
  return value_->size();
}

std::vector<JsonView> JsonView::elements() const {
  expect(is_array(), "an array");
  std::vector<JsonView> views;
  views.reserve(value_->size());
  for (const auto& element : value_->get_ref<const Json::array_t&>()) {
    views.push_back({element, *document_});
  }
  return views;
}

std::vector<JsonMember> JsonView::members() const {
  expect(is_object(), "an object");
  std::vector<JsonMember> all;
  all.reserve(value_->size());
  for (const auto& [key, value] : value_->get_ref<const Json::object_t&>()) {
    all.push_back({key, {value, *document_}});
  }
  return all;
}

JsonMember JsonView::only_member() const {
  expect(is_object() && value_->size() == 1, "an object with one member");
  const auto& [key, value] = *value_->get_ref<const Json::object_t&>().begin();
  return {key, {value, *document_}};
}

const std::string& JsonView::text() const {
  expect(is_text(), "a string");
  return value_->get_ref<const std::string&>();
}

bool JsonView::boolean() const {
  expect(is_boolean(), "true or false");
  return value_->get<bool>();
}

double JsonView::number() const {
  expect(is_number(), "a number");
  return value_->get<double>();
}

int64_t JsonView::integer(int64_t least, int64_t most) const {
  constexpr auto kMost =
      static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  expect(is_integer(), "an integer");
  const bool fits =
      !value_->is_number_unsigned() || value_->get<uint64_t>() <= kMost;
  const auto value = fits ? value_->get<int64_t>() : 0;
  if (!fits || value < least || value > most) {
    refuse(
        "expected an integer from {} to {}, got {}",
        least,
        most,
        value_->dump());
  }
  return value;
}

uint64_t JsonView::unsigned_integer(uint64_t most) const {
  expect(is_integer(), "an integer");
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > most) {
    refuse("expected an integer from 0 to {}, got {}", most, value_->dump());
  }
  return value_->get<uint64_t>();
}

} // namespace dtensor::detail
