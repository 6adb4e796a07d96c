// SPDX-License-Identifier: BSD-3-Clause
// Reader for all JSON texts in files: headers and indexes of safetensors,
// checkpoint.json, tables and graphs of exported programs.
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

#include <dtensor/format_text.h>
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

/// Maximum nesting of arrays and objects. Readers recurse into them.
constexpr size_t kMaxJsonDepth = 128;
/// Maximum number of bytes of a text, and of values in it. A value takes up to
/// 130 bytes of memory, many times as much as its text.
constexpr size_t kMostJsonBytes = 100'000'000;
constexpr size_t kMostJsonValues = 10'000'000;

/// Maximum number of bytes of a text quoted in error messages.
constexpr size_t kLongestJsonQuote = 60;
/// Returns a text as a JSON string, shortened if long.
std::string quoted_json(std::string_view text);
/// Returns a name from a file for use in messages. It is quoted if it is long
/// or contains bytes that must not be sent to a terminal.
std::string shown_name(std::string_view name);

/// Origin of a JSON text, for error messages: "[where] path: part: ... .
/// advice".
struct JsonOrigin {
  std::string where; // public function that the program called
  std::string path;  // file
  /// Place of the text in the file, such as a record of an archive. Empty if
  /// the file is the text.
  std::string part = {};
  std::string advice = {}; // sentences, without the last full stop
};

class JsonDocument;
struct JsonMember;

/// A value in a document. The document must outlive the view. Each function
/// throws ValueError, with the value's place, if the value is not of the
/// expected kind.
class JsonView {
 public:
  bool is_null() const;
  bool is_array() const;
  bool is_object() const;
  bool is_text() const;
  bool is_boolean() const;
  bool is_integer() const;
  bool is_number() const;

  /// Returns the member with that name. Throws if there is no such member.
  JsonView at(std::string_view key) const;
  /// Returns the member with that name, or nothing.
  std::optional<JsonView> find(std::string_view key) const;
  /// Returns the element at that index. Throws if the array is shorter.
  JsonView at(size_t index) const;
  /// Returns the number of elements or members.
  size_t size() const;
  /// Returns all elements of an array.
  std::vector<JsonView> elements() const;
  /// Returns all members of an object, sorted by name.
  std::vector<JsonMember> members() const;
  /// Returns the only member of an object, such as {"as_int": 3}.
  JsonMember only_member() const;

  const std::string& text() const;
  bool boolean() const;
  /// Returns any number as a double.
  double number() const;
  /// Returns an integer within [least, most]. 3.0 is not an integer.
  int64_t integer(
      int64_t least = std::numeric_limits<int64_t>::min(),
      int64_t most = std::numeric_limits<int64_t>::max()) const;
  /// Returns an integer within [0, most].
  uint64_t unsigned_integer(
      uint64_t most = std::numeric_limits<uint64_t>::max()) const;

  /// Throws ValueError with the value's place and the problem.
  [[noreturn]] void refuse(const std::string& why) const;
  template <class First, class... Others>
  [[noreturn]] void refuse(
      TextFormat<1 + sizeof...(Others)> why,
      const First& value,
      const Others&... values) const {
    refuse(format_text(why, value, values...));
  }
  /// Returns "nodes[3].target", or an empty text for the root.
  std::string place() const;
  /// Returns "an integer: 3" or "an object", shortened if long.
  std::string description() const;
  const nlohmann::json& json() const {
    return *value_;
  }

 private:
  friend class JsonDocument;
  JsonView(const nlohmann::json& value, const JsonDocument& document)
      : value_(&value),
        document_(&document) {}

  /// Refuses a value that is not of the expected kind.
  void expect(bool is_of_kind, const char* kind) const;

  const nlohmann::json* value_;
  const JsonDocument* document_;
};

struct JsonMember {
  const std::string& key;
  JsonView value;
};

/// A parsed JSON text.
class JsonDocument {
 public:
  /// Parses the text. Throws ValueError for a text that is not JSON, duplicate
  /// members of an object, and more than `max_depth` levels, kMostJsonBytes
  /// or kMostJsonValues. Time and memory are proportional to the text.
  JsonDocument(
      std::string_view text,
      JsonOrigin origin,
      size_t max_depth = kMaxJsonDepth);
  ~JsonDocument();
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  JsonView root() const;

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
