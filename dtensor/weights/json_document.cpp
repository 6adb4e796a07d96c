// SPDX-License-Identifier: BSD-3-Clause
// Builds documents in a handler of the parser's events. nlohmann::json itself
// parses without recursion, but copies, compares and prints recursively, and
// keeps the last of duplicate members. The handler refuses deep nesting and
// duplicates.
#include <dtensor/weights/json_document_impl.h>

#include <dtensor/error.h>

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

using Json = nlohmann::json;

bool is_identifier(std::string_view key) {
  return !key.empty() && key.size() <= kLongestJsonQuote &&
      std::ranges::all_of(key, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
            (c >= '0' && c <= '9') || c == '_';
      });
}

std::string member_text(const std::string& key) {
  return is_identifier(key) ? "." + key : "[" + quoted_json(key) + "]";
}

// Prepends the path from `from` to `wanted`. Returns false if `from` does not
// contain `wanted`.
bool find_way(const Json& from, const Json* wanted, std::string& way) {
  if (&from == wanted) {
    return true;
  }
  if (from.is_object()) {
    for (const auto& [key, value] : from.get_ref<const Json::object_t&>()) {
      if (find_way(value, wanted, way)) {
        way.insert(0, member_text(key));
        return true;
      }
    }
  } else if (from.is_array()) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (find_way(from[i], wanted, way)) {
        way.insert(0, c10::str("[", i, "]"));
        return true;
      }
    }
  }
  return false;
}

// Shortens "[json.exception...] parse error at line 1, column 2: syntax error
// ... - unexpected end of input; last read: '{'; expected '}'" by the library's
// name, the position and the text.
std::string reason_of(const std::string& what) {
  auto reason =
      what.substr(what.find("] ") == what.npos ? 0 : what.find("] ") + 2);
  if (const auto column = reason.find(", column "); column != reason.npos) {
    const auto colon = reason.find(": ", column);
    reason = colon == reason.npos ? reason : reason.substr(colon + 2);
  }
  const auto read = reason.find("; last read: ");
  const auto expected = reason.rfind("; expected ");
  if (read != reason.npos) {
    reason = reason.substr(0, read) +
        (expected == reason.npos || expected < read ? ""
                                                    : reason.substr(expected));
  }
  return reason.substr(0, 2 * kLongestJsonQuote);
}

// Builds the document from the parser's events.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(Json& root, size_t max_depth) : root_(root), max_depth_(max_depth) {}

  bool null() override {
    return add(nullptr) != nullptr;
  }
  bool boolean(bool value) override {
    return add(value) != nullptr;
  }
  bool number_integer(number_integer_t value) override {
    return add(value) != nullptr;
  }
  bool number_unsigned(number_unsigned_t value) override {
    return add(value) != nullptr;
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return add(value) != nullptr;
  }
  bool string(string_t& value) override {
    return add(std::move(value)) != nullptr;
  }
  bool binary(binary_t& /*value*/) override {
    return false; // JSON has no binary values
  }
  bool start_object(size_t /*elements*/) override {
    return open(Json::object());
  }
  bool start_array(size_t /*elements*/) override {
    return open(Json::array());
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }

  bool key(string_t& name) override {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    const auto [member, is_new] = members.try_emplace(name, nullptr);
    if (!is_new) {
      problem_ = quoted_json(name) + " appears twice";
      return false;
    }
    next_ = &member->second;
    return true;
  }

  bool parse_error(
      size_t position,
      const std::string& /*last_token*/,
      const Json::exception& error) override {
    problem_ = detail::format_text(
        "invalid JSON at byte {}: {}", position, reason_of(error.what()));
    open_.clear();
    return false;
  }

  const std::string& problem() const {
    return problem_;
  }
  /// Returns the innermost array or object with the problem; null for the text
  /// as a whole.
  const Json* place() const {
    return open_.empty() ? nullptr : open_.back();
  }

 private:
  // Returns null if there are too many values.
  Json* add(Json value) {
    if (++values_ > kMostJsonValues) {
      problem_ = detail::format_text("more than {} values", kMostJsonValues);
      open_.clear();
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& elements = open_.back()->get_ref<Json::array_t&>();
      return &elements.emplace_back(std::move(value));
    }
    *next_ = std::move(value);
    return next_;
  }

  bool open(Json value) {
    if (open_.size() >= max_depth_) {
      problem_ = detail::format_text("more than {} nested levels", max_depth_);
      open_.clear(); // the place would be as long as the nesting is deep
      return false;
    }
    auto* added = add(std::move(value));
    if (added == nullptr) {
      return false;
    }
    open_.push_back(added);
    return true;
  }

  Json& root_;
  size_t max_depth_;
  size_t values_ = 0;
  std::vector<Json*> open_; // open arrays and objects, outermost first
  Json* next_ = nullptr;    // member that receives the next value
  std::string problem_;
};

} // namespace

JsonDocument::JsonDocument(
    std::string_view text,
    JsonOrigin origin,
    size_t max_depth)
    : origin_(std::move(origin)),
      root_(std::make_unique<Json>()) {
  Builder builder(*root_, max_depth);
  if (text.size() > kMostJsonBytes) {
    refuse(
        "",
        detail::format_text(
            "it has {} bytes, more than {}", text.size(), kMostJsonBytes));
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    refuse("", "invalid JSON: it begins with a byte order mark");
  }
  // The parser would treat a zero byte as the end.
  if (const auto zero = text.find('\0'); zero != text.npos) {
    refuse(
        "",
        detail::format_text("invalid JSON at byte {}: a zero byte", zero + 1));
  }
  if (!Json::sax_parse(text, &builder)) {
    const auto* place = builder.place();
    refuse(place == nullptr ? "" : place_of(*place), builder.problem());
  }
}

JsonDocument::~JsonDocument() = default;

JsonView JsonDocument::root() const {
  return {*root_, *this};
}

std::string JsonDocument::place_of(const Json& value) const {
  std::string way;
  find_way(*root_, &value, way);
  return way.starts_with(".") ? way.substr(1) : way;
}

void JsonDocument::refuse(const std::string& place, const std::string& why)
    const {
  std::string text = origin_.path;
  for (const auto* part : {&origin_.part, &place, &why}) {
    text += part->empty() ? "" : ": " + *part;
  }
  DTENSOR_THROW_VALUE(
      "[{}] {}.{}",
      origin_.where,
      text,
      origin_.advice.empty() ? "" : " " + origin_.advice + ".");
}

} // namespace dtensor::detail
