// SPDX-License-Identifier: BSD-3-Clause
// Cost of matching a plan, measured by the number of compared names instead of
// time.
#include <dtensor/parallel/plan/module_names_impl.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

namespace dtensor {
namespace TEST_SOURCE {

using detail::matches_glob;

torch::nn::ModuleList many(int64_t count) {
  torch::nn::ModuleList model;
  for (int64_t i = 0; i < count; ++i) {
    model->push_back(torch::nn::Linear(1, 1));
  }
  return model;
}

TEST(PlanMatches, LookUpAnExactNameOnce) {
  constexpr int64_t kModules = 500;
  auto model = many(kModules);
  detail::PlanMatches matches(*model);
  for (int64_t i = 0; i < kModules; ++i) {
    const auto found = matches.find(std::to_string(i));
    ASSERT_EQ(found.size(), 1);
    EXPECT_EQ(found[0].name, std::to_string(i));
  }
  EXPECT_EQ(matches.compared(), kModules);
  EXPECT_EQ(matches.find("1*").size(), 111);
  EXPECT_EQ(matches.compared(), 2 * kModules);
}

TEST(PlanMatches, CompareOnlySegmentsWithWildcards) {
  struct BlockImpl : torch::nn::Module {
    torch::nn::Linear up = register_module("up", torch::nn::Linear(1, 1));
    torch::nn::Linear down = register_module("down", torch::nn::Linear(1, 1));
  };
  torch::nn::ModuleList model;
  for (int i = 0; i < 20; ++i) {
    model->push_back(std::make_shared<BlockImpl>());
  }
  detail::PlanMatches matches(*model);
  EXPECT_EQ(matches.find("*.up").size(), 20);
  EXPECT_EQ(matches.compared(), 40); // 20 names, 20 lookups
  EXPECT_EQ(matches.find("7.down").size(), 1);
  EXPECT_EQ(matches.compared(), 42);
}

// Retrying every star would take longer than the test's timeout.
TEST(MatchesGlob, TakesWorkInProportionToTheLengths) {
  std::string stars;
  for (int i = 0; i < 60; ++i) {
    stars += "*a";
  }
  const std::string name(3000, 'a');
  EXPECT_TRUE(matches_glob(stars + "*", name));
  EXPECT_FALSE(matches_glob(stars + "*b", name));
  EXPECT_FALSE(matches_glob(std::string(4000, '*') + "b", name));
  EXPECT_FALSE(matches_glob(std::string(4000, '[') + "*b", name));
  EXPECT_FALSE(matches_glob(std::string(100'000, '?'), name));
  EXPECT_TRUE(matches_glob(std::string(100'000, '*'), name)); // no recursion
}

TEST(MatchesGlob, AgreesWithTrialOfAllStars) {
  // Reference matcher: a star matches any number of characters.
  const std::function<bool(std::string_view, std::string_view)> slow =
      [&](std::string_view pattern, std::string_view name) {
        if (pattern.empty()) {
          return name.empty();
        }
        if (pattern[0] == '*') {
          return slow(pattern.substr(1), name) ||
              (!name.empty() && slow(pattern, name.substr(1)));
        }
        return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
            slow(pattern.substr(1), name.substr(1));
      };
  const std::string_view letters = "ab*?";
  const auto word = [&](int64_t number, size_t of) {
    std::string text;
    for (; number > 0; number /= static_cast<int64_t>(of)) {
      text += letters[static_cast<size_t>(number) % of];
    }
    return text;
  };
  for (int64_t p = 0; p < 1024; ++p) {
    for (int64_t n = 0; n < 64; ++n) {
      const auto pattern = word(p, 4);
      const auto name = word(n, 2);
      EXPECT_EQ(matches_glob(pattern, name), slow(pattern, name))
          << pattern << " " << name;
    }
  }
}

TEST(MatchesGlob, AcceptsSetsBetweenStars) {
  EXPECT_TRUE(matches_glob("*[0-9].w[!12]*", "layers.7.w3x"));
  EXPECT_FALSE(matches_glob("*[0-9].w[!12]*", "layers.7.w2x"));
  EXPECT_TRUE(matches_glob("[]a]*[", "]x[")); // no set: unterminated
  EXPECT_TRUE(matches_glob("[*", "[abc"));
}

} // namespace TEST_SOURCE
} // namespace dtensor
