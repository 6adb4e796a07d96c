// SPDX-License-Identifier: BSD-3-Clause
// Name patterns compared with Python's fnmatch.fnmatchcase.
#include <dtensor/parallel/plan/module_names_impl.h>

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace dtensor {
namespace TEST_SOURCE {

using detail::matches_glob;

TEST(Glob, MatchesAsPythonDoes) {
  EXPECT_TRUE(matches_glob("layers.*.w1", "layers.12.w1"));
  EXPECT_TRUE(matches_glob("*", ""));
  EXPECT_TRUE(matches_glob("**a", "a"));
  EXPECT_TRUE(matches_glob("a?c", "abc"));
  EXPECT_TRUE(matches_glob("w[13]", "w3"));
  EXPECT_TRUE(matches_glob("w[!13]", "w2"));
  EXPECT_TRUE(matches_glob("[]a]", "]"));
  EXPECT_TRUE(matches_glob("[a-c]*[x-z]", "b.z"));
  EXPECT_TRUE(matches_glob("a[b", "a[b"));
  EXPECT_TRUE(matches_glob("[*]", "*"));
  EXPECT_FALSE(matches_glob("", "a"));
  EXPECT_FALSE(matches_glob("a", ""));
  EXPECT_FALSE(matches_glob("a*b", "acbd"));
  EXPECT_FALSE(matches_glob("[*]", "a"));
  EXPECT_FALSE(matches_glob("w[!13]", "w3"));
}

// Reference matcher: tries every match of a star.
bool matches_slowly(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) {
    return name.empty();
  }
  if (pattern[0] == '*') {
    return matches_slowly(pattern.substr(1), name) ||
        (!name.empty() && matches_slowly(pattern, name.substr(1)));
  }
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
      matches_slowly(pattern.substr(1), name.substr(1));
}

TEST(Glob, StarsTakeWhatLeavesAMatch) {
  std::mt19937 random(5);
  const auto text = [&](const std::string& letters, size_t most) {
    std::string all;
    for (auto left = random() % (most + 1); left > 0; --left) {
      all += letters[random() % letters.size()];
    }
    return all;
  };
  int matched = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto pattern = text("ab*?", 7);
    const auto name = text("ab", 8);
    const bool expected = matches_slowly(pattern, name);
    matched += expected ? 1 : 0;
    EXPECT_EQ(matches_glob(pattern, name), expected) << pattern << " " << name;
  }
  EXPECT_GT(matched, 1000);
}

// An exponential matcher runs into the time limit of the suite.
TEST(Glob, ManyStarsTakeTimeThatGrowsWithBothLengths) {
  std::string pattern;
  for (int i = 0; i < 500; ++i) {
    pattern += "*a";
  }
  const std::string name(5000, 'a');
  const std::string sets(5000, '[');
  EXPECT_FALSE(matches_glob(pattern + "b", name));
  EXPECT_FALSE(matches_glob("*" + sets + "x", sets));
}

} // namespace TEST_SOURCE
} // namespace dtensor
