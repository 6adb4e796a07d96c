// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/format_text.h>

#include <dtensor/error.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/text.h>
#include <dtensor/shortened_impl.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>

#include <string>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

using detail::format_text;
using namespace dtensor::test_text;

TEST(FormatText, PrintsValuesAsStreamsDo) {
  EXPECT_EQ(format_text("no values"), "no values");
  EXPECT_EQ(format_text("rank {} of {}", 1, int64_t{4}), "rank 1 of 4");
  EXPECT_EQ(format_text("{}{}", "a", std::string("b")), "ab");
  EXPECT_EQ(format_text("to {}", Placement(Shard(0))), "to S(0)");
  EXPECT_EQ(format_text("{}", 0.5), "0.5");
}

TEST(FormatText, KeepsBracesThatAreDoubled) {
  EXPECT_EQ(format_text("{{}}"), "{}");
  EXPECT_EQ(format_text("{{{}}}", 1), "{1}");
}

TEST(FormatText, CountsAgreeWithTheirNouns) {
  EXPECT_EQ(detail::pluralize(1, "rank"), "1 rank");
  EXPECT_EQ(detail::pluralize(size_t{0}, "rank"), "0 ranks");
  EXPECT_EQ(detail::pluralize(int64_t{2}, "rank"), "2 ranks");
}

TEST(FormatText, ShortensBetweenCharacters) {
  EXPECT_EQ(detail::shortened("four"), "four");
  EXPECT_EQ(detail::shortened("four", 4), "four");
  EXPECT_EQ(detail::shortened("fives", 4), "five...");
  // The third character has the bytes 2 and 3, the fourth 4 to 6.
  const std::string text = "ab\u00e9\u20ac";
  const std::vector<std::string> expected = {
      "...",
      "a...",
      "ab...",
      "ab...",
      "ab\u00e9...",
      "ab\u00e9...",
      "ab\u00e9...",
      text};
  for (size_t most = 0; most < expected.size(); ++most) {
    EXPECT_EQ(detail::shortened(text, most), expected[most]) << most;
  }
  // No character begins in bytes that are not UTF-8.
  EXPECT_EQ(detail::shortened(std::string(9, '\x80'), 4), "...");
}

TEST(FormatText, TakesBracesInValuesAsTheyAre) {
  EXPECT_EQ(format_text("[{}]", "{}"), "[{}]");
}

TEST(FormatText, IsTheTextOfThrownErrors) {
  EXPECT_EQ(
      error_of([] { DTENSOR_CHECK_VALUE(1 > 2, "[where] {} is wrong.", 7); }),
      "[where] 7 is wrong.");
  EXPECT_THROW(DTENSOR_THROW("[where] {}", 1), c10::Error);
  EXPECT_THROW(DTENSOR_THROW_VALUE("[where] {}", 1), c10::ValueError);
  EXPECT_THROW(DTENSOR_THROW_INDEX("[where] {}", 1), c10::IndexError);
  EXPECT_THROW(DTENSOR_THROW_TYPE("[where] {}", 1), c10::TypeError);
  EXPECT_THROW(
      DTENSOR_THROW_NOT_IMPLEMENTED("[where] {}", 1), c10::NotImplementedError);
}

} // namespace TEST_SOURCE
} // namespace dtensor
