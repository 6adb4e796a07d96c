// SPDX-License-Identifier: BSD-3-Clause
// The reader of every JSON text that comes from a file: headers and indexes of
// safetensors, checkpoint.json, tables and graphs of exported programs.
//
//   const JsonDocument document(text, {"open_weights", path, "header"});
//   for (const auto& [name, about] : document.root().members()) {
//     const auto dtype = about.at("dtype").text();
//   }
//
// Every error names the file and the place in the text:
//
//   [open_weights] model.safetensors: header: w.shape[0]: expected an integer,
//   got a string: "2".
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Levels of arrays and objects that a document may have. Readers recurse into
/// them.
constexpr size_t kMaxJsonDepth = 128;

/// Bytes of a text that error messages repeat.
constexpr size_t kLongestJsonQuote = 60;
/// A text as JSON has it, cut where it is long.
std::string quoted_json(std::string_view text);
/// A name from a file as messages repeat it: quoted where it is long or has
/// bytes that no terminal should get.
std::string shown_name(std::string_view name);

/// Names the text in error messages: "[where] path: part: ... . advice".
struct JsonOrigin {
  std::string where; // the function that a program called
  std::string path;  // the file
  /// Where the text is in the file, as a record of an archive; empty: the file
  /// is the text.
  std::string part = {};
  std::string advice = {}; // sentences, without the last full stop
};

class JsonDocument;
struct JsonMember;

/// A value in a document, which must outlive the view. Each function throws
/// ValueError, with the value's place, where the value is not as it should be.
class JsonView {
 public:
  bool is_null() const;
  bool is_array() const;
  bool is_object() const;
  bool is_text() const;
  bool is_boolean() const;
  bool is_integer() const;
  bool is_number() const;

  /// The member of that name. Throws if the value has none.
  JsonView at(std::string_view key) const;
  /// The same; nothing if the object has no such member.
  std::optional<JsonView> find(std::string_view key) const;
  /// The element at that index. Throws if the array is shorter.
  JsonView at(size_t index) const;
  /// The number of elements or members.
  size_t size() const;
  /// All elements of an array.
  std::vector<JsonView> elements() const;
  /// All members of an object, sorted by their names.
  std::vector<JsonMember> members() const;
  /// The member of an object that has one: {"as_int": 3}.
  JsonMember only_member() const;

  const std::string& text() const;
  bool boolean() const;
  /// Any number, as a double.
  double number() const;
  /// An integer within [least, most]; 3.0 is none.
  int64_t integer(
      int64_t least = std::numeric_limits<int64_t>::min(),
      int64_t most = std::numeric_limits<int64_t>::max()) const;
  /// An integer within [0, most].
  uint64_t unsigned_integer(
      uint64_t most = std::numeric_limits<uint64_t>::max()) const;

  /// Throws ValueError: the value's place and what is wrong with it.
  [[noreturn]] void refuse(const std::string& why) const;
  /// "nodes[3].target", or empty for the root.
  std::string place() const;
  /// "an integer: 3", "an object"; long values are cut.
  std::string description() const;
  const nlohmann::json& json() const {
    return *value_;
  }

 private:
  friend class JsonDocument;
  JsonView(const nlohmann::json& value, const JsonDocument& document)
      : value_(&value),
        document_(&document) {}

  [[noreturn]] void refuse_kind(const char* expected) const;

  const nlohmann::json* value_;
  const JsonDocument* document_;
};

struct JsonMember {
  const std::string& key;
  JsonView value;
};

/// A JSON text that has been parsed.
class JsonDocument {
 public:
  /// Throws ValueError for a text that is no JSON, a member that an object has
  /// twice, and more than `max_depth` levels. Takes time and memory
  /// proportional to the text.
  JsonDocument(
      std::string_view text,
      JsonOrigin origin,
      size_t max_depth = kMaxJsonDepth);
  ~JsonDocument();
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  JsonView root() const;
  const JsonOrigin& origin() const {
    return origin_;
  }

 private:
  friend class JsonView;
  std::string place_of(const nlohmann::json& value) const;
  /// `place` and `why` may be empty.
  [[noreturn]] void refuse(const std::string& place, const std::string& why)
      const;

  JsonOrigin origin_;
  std::unique_ptr<nlohmann::json> root_;
};

} // namespace dtensor::detail
