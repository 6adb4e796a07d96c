// SPDX-License-Identifier: BSD-3-Clause
// Tests of mistakes in rules that programs register.
#include <dtensor/ops/einsum.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/registry.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>

namespace dtensor::testing {
namespace TEST_SOURCE {

using test_text::error_of;

TEST(Registry, ARuleGivenTwice) {
  RuleRegistry rules;
  rules.einsum("mm", "mk,kn->mn");
  EXPECT_EQ(
      error_of<c10::ValueError>([&] { rules.einsum("mm", "mk,kn->mn"); }),
      "[RuleRegistry] aten::mm has a rule already. Replace it with "
      "register_sharding().");
}

TEST(Registry, TraitsGivenTwice) {
  RuleRegistry rules;
  rules.einsum("mm", "mk,kn->mn").with_traits({.product = true});
  EXPECT_EQ(
      error_of<c10::ValueError>([&] { rules.traits("mm", {}); }),
      "[RuleRegistry] aten::mm has traits already. Set them once, in its rule "
      "if it has one.");
  rules.traits("mm_", {});
  EXPECT_THROW(rules.traits("mm_", {}), c10::ValueError);
}

TEST(Registry, TraitsOfARuleAndOfAnOperatorAlone) {
  RuleRegistry rules;
  rules.einsum("mm", "mk,kn->mn").with_traits({.product = true});
  rules.traits("eq_.Scalar", {.gradient_from_sizes_only = true});
  const auto found = [&](const char* name) {
    return rules.find_traits(parse_operator_name(name));
  };
  EXPECT_TRUE(found("mm")->product);
  EXPECT_TRUE(found("eq_.Scalar")->gradient_from_sizes_only);
  EXPECT_EQ(found("eq_.Tensor"), nullptr);
  EXPECT_EQ(rules.find(parse_operator_name("eq_.Scalar")), nullptr);
}

// An in-place form shares the gradient formula's traits with the functional
// operator, but no others.
TEST(Registry, TraitsOfAnInPlaceForm) {
  const auto traits = [](const char* name, const char* overload) {
    return detail::OpInfo(
               c10::Dispatcher::singleton().findSchemaOrThrow(name, overload))
        .traits;
  };
  EXPECT_TRUE(traits("aten::sgn", "").gradient_from_sizes_only);
  EXPECT_TRUE(traits("aten::sgn_", "").gradient_from_sizes_only);
  EXPECT_FALSE(traits("aten::eq", "Scalar").gradient_from_sizes_only);
  EXPECT_TRUE(traits("aten::eq_", "Scalar").gradient_from_sizes_only);
  EXPECT_TRUE(traits("aten::addmm", "").boundary.has_value());
  EXPECT_FALSE(traits("aten::addmm_", "").boundary.has_value());
  EXPECT_TRUE(traits("aten::add_", "Tensor").adds_bias);
  EXPECT_FALSE(traits("aten::add", "Tensor").adds_bias);
}

TEST(Registry, InvalidEinsums) {
  const auto error = [](const char* equation) {
    return error_of<c10::ValueError>([&] { Einsum::parse(equation); });
  };
  EXPECT_EQ(
      error("mk,kn"),
      "[einsum] \"mk,kn\" has no ->. Write inputs and output as \"mk,kn->mn\", "
      "one letter per dimension.");
  EXPECT_EQ(
      error("mk,kn->mz"),
      "[einsum] \"mk,kn->mz\": no input has the letter z of the output. Write "
      "inputs and output as \"mk,kn->mn\", one letter per dimension.");
  EXPECT_EQ(
      error("mm,kn->kn"),
      "[einsum] \"mm,kn->kn\": the letter m occurs twice in one tensor. Write "
      "inputs and output as \"mk,kn->mn\", one letter per dimension.");
  EXPECT_EQ(
      error("m k,kn->mn"),
      "[einsum] \"m k,kn->mn\": ' ' is neither a letter nor 1. Write inputs "
      "and output as \"mk,kn->mn\", one letter per dimension.");
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
