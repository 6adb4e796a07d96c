// SPDX-License-Identifier: BSD-3-Clause
// Tests JSON texts from files: errors and their texts.
#include <dtensor/weights/json_document_impl.h>
#include <tests/error_of.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtensor {
namespace TEST_SOURCE {

using detail::JsonDocument;
using detail::JsonView;
using test_text::error_of;

const detail::JsonOrigin kOrigin{"read", "a.json", "header", "Write it again"};

// Returns the error without "[read] a.json: header: " and the advice, or an
// empty text.
template <class Fn>
std::string refusal(const std::string& text, const Fn& read) {
  const auto error = error_of([&] {
    const JsonDocument document(text, kOrigin);
    read(document.root());
  });
  const std::string begin = "[read] a.json: header: ";
  const std::string end = ". Write it again.";
  if (error == "nothing was thrown" || error.empty()) {
    return "";
  }
  EXPECT_TRUE(error.starts_with(begin)) << error;
  EXPECT_TRUE(error.ends_with(end)) << error;
  return error.substr(begin.size(), error.size() - begin.size() - end.size());
}
std::string refusal(const std::string& text) {
  return refusal(text, [](const JsonView&) {});
}

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

// A value takes many times as much memory as its text.
TEST(JsonDocument, HasALimitedNumberOfBytesAndValues) {
  EXPECT_EQ(
      refusal("[" + repeated("0,", detail::kMostJsonValues - 1) + "[]]"),
      "more than 10000000 values");
  EXPECT_EQ(
      refusal("[" + std::string(detail::kMostJsonBytes, ' ') + "]"),
      "it has 100000002 bytes, more than 100000000");
}

TEST(JsonDocument, HasTheValuesOfTheText) {
  const JsonDocument document(
      R"( {"a": [1, -2, 3.5, "x\u00e9", true, null, {}], "b": {"c": 18446744073709551615}} )",
      kOrigin);
  const auto root = document.root();
  const auto a = root.at("a").elements();
  ASSERT_EQ(a.size(), 7);
  EXPECT_EQ(a[0].integer(), 1);
  EXPECT_EQ(a[1].integer(), -2);
  EXPECT_EQ(a[2].number(), 3.5);
  EXPECT_EQ(a[0].number(), 1.0);
  EXPECT_EQ(a[3].text(), "x\xc3\xa9");
  EXPECT_TRUE(a[4].boolean());
  EXPECT_TRUE(a[5].is_null());
  EXPECT_EQ(a[6].size(), 0);
  EXPECT_EQ(root.at("b").at("c").unsigned_integer(), UINT64_MAX);
  EXPECT_EQ(root.at("b").only_member().key, "c");
  EXPECT_FALSE(root.find("d").has_value());
  EXPECT_EQ(root.members()[1].key, "b");
  EXPECT_EQ(root.at("a").at(3).place(), "a[3]");
}

TEST(JsonDocument, RefusesInvalidJson) {
  EXPECT_THAT( // nlohmann-json changed the text after the position
      refusal(""),
      ::testing::AnyOf(
          ::testing::StartsWith("invalid JSON at byte 1: syntax error"),
          ::testing::StartsWith(
              "invalid JSON at byte 1: attempting to parse an empty input")));
  EXPECT_EQ(
      refusal(R"({"a": 1)"),
      "invalid JSON at byte 8: syntax error while parsing object - unexpected "
      "end of input; expected '}'");
  EXPECT_EQ(
      refusal(R"({"a": 1} x)"),
      "invalid JSON at byte 10: syntax error while parsing value - invalid "
      "literal; expected end of input");
  EXPECT_NE(refusal("[1e999]"), "");
  EXPECT_NE(refusal("[NaN]"), "");
  EXPECT_NE(refusal("[\"\xff\"]"), "");
  EXPECT_NE(refusal("[\"\\ud800\"]"), "");
  EXPECT_EQ(
      refusal(std::string("{}\0{", 4)), "invalid JSON at byte 3: a zero byte");
  EXPECT_EQ(
      refusal("\xEF\xBB\xBF{}"),
      "invalid JSON: it begins with a byte order mark");
  // A long text is not quoted in full.
  EXPECT_LT(refusal("\"" + std::string(100000, 'x')).size(), 200);
}

TEST(JsonDocument, RefusesDuplicateMembers) {
  EXPECT_EQ(refusal(R"({"w": 1, "w": 1})"), "\"w\" appears twice");
  EXPECT_EQ(
      refusal(R"({"a b": [{}, {"w": 1, "v": 2, "w": 1}]})"),
      R"(["a b"][1]: "w" appears twice)");
  EXPECT_EQ(refusal(R"({"w": {"w": [{"w": 1}]}})"), "");
}

TEST(JsonDocument, RefusesTooManyLevels) {
  const auto nested = [](size_t levels) {
    return repeated("[", levels) + repeated("]", levels);
  };
  EXPECT_EQ(refusal(nested(128)), "");
  EXPECT_EQ(refusal(nested(129)), "more than 128 nested levels");
  for (const auto* open : {"[", "{\"a\":", "[{\"a\":"}) {
    EXPECT_EQ(refusal(repeated(open, 1000000)), "more than 128 nested levels");
  }
  EXPECT_EQ(
      error_of([&] { JsonDocument("[[1]]", kOrigin, 1); }),
      "[read] a.json: header: more than 1 nested levels. Write it again.");
}

TEST(JsonDocument, NamesTheLocationOfAWrongValue) {
  const std::string text =
      R"({"tensors": {"layers.0.w": {"sizes": ["4", -1, 2.0, 9223372036854775808], )"
      R"("none": null, "yes": true, "list": [], "object": {}}}})";
  const auto refused = [&](const auto& read) {
    return refusal(text, [&](const JsonView& root) {
      read(root.at("tensors").at("layers.0.w"));
    });
  };
  const std::string w = "tensors[\"layers.0.w\"]";
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("sizes").at(0).integer(); }),
      w + ".sizes[0]: expected an integer, got a string: \"4\"");
  EXPECT_EQ(
      refused(
          [](const JsonView& v) { v.at("sizes").at(1).unsigned_integer(9); }),
      w + ".sizes[1]: expected an integer from 0 to 9, got -1");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("sizes").at(1).integer(0, 9); }),
      w + ".sizes[1]: expected an integer from 0 to 9, got -1");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("sizes").at(1).text(); }),
      w + ".sizes[1]: expected a string, got -1");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("yes").at(size_t{0}); }),
      w + ".yes: expected an array, got true");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("sizes").at(2).integer(); }),
      w +
          ".sizes[2]: expected an integer, got a number with a fraction or an "
          "exponent: 2.0");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("sizes").at(3).integer(); }),
      w +
          ".sizes[3]: expected an integer from -9223372036854775808 to "
          "9223372036854775807, got 9223372036854775808");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("sizes").at(4); }),
      w + ".sizes: expected more than 4 elements, got 4");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("dtype"); }),
      w + ": \"dtype\" is missing");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("none").at("x"); }),
      w + ".none: expected an object, got null");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("yes").text(); }),
      w + ".yes: expected a string, got true");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("list").boolean(); }),
      w + ".list: expected true or false, got an empty array");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("object").only_member(); }),
      w + ".object: expected an object with one member, got an empty object");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.members()[0].value.number(); }),
      w + ".list: expected a number, got an empty array");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.at("yes").size(); }),
      w + ".yes: expected an array or an object, got true");
  EXPECT_EQ(
      refused([](const JsonView& v) { v.elements(); }),
      w + ": expected an array, got an object");
}

// Long keys and texts in errors are shortened, for any bytes.
TEST(JsonDocument, ShortensQuotedTexts) {
  const auto key = repeated("\xc3\xa9", 50000);
  const auto text = refusal(
      "{\"" + key + "\": \"" + key + "\"}",
      [&](const JsonView& root) { root.at(key).integer(); });
  EXPECT_LT(text.size(), 300) << text;
  EXPECT_NE(text.find("expected an integer, got a string"), text.npos) << text;
}

// 200,000 members of one object and 2 million elements of one array are read in
// linear time. A quadratic reader runs into the time limit of the suite.
TEST(JsonDocument, IsReadInLinearTime) {
  std::string text = "{\"list\":[0";
  text += repeated(",0", 2000000) + "]";
  for (int i = 0; i < 200000; ++i) {
    text += ",\"" + std::to_string(i) + "\":{\"a\":[1]}";
  }
  text += "}";
  const JsonDocument document(text, kOrigin);
  const auto members = document.root().members();
  EXPECT_EQ(members.size(), 200001);
}

} // namespace TEST_SOURCE
} // namespace dtensor
