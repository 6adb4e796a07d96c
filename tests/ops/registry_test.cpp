// SPDX-License-Identifier: BSD-3-Clause
// Mistakes in rules that programs register.
#include <dtensor/ops/einsum.h>
#include <dtensor/ops/registry.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>

namespace dtensor::testing {
namespace {

using test_text::error_of;

TEST(Registry, ARuleGivenTwice) {
  RuleRegistry rules;
  rules.einsum("mm", "mk,kn->mn");
  EXPECT_EQ(
      error_of<c10::ValueError>([&] { rules.einsum("mm", "mk,kn->mn"); }),
      "[RuleRegistry] aten::mm has a rule already. Give each operator one.");
}

TEST(Registry, AnEinsumThatMakesNoSense) {
  const auto error = [](const char* equation) {
    return error_of<c10::ValueError>([&] { Einsum::parse(equation); });
  };
  EXPECT_EQ(
      error("mk,kn"),
      "[einsum] \"mk,kn\" has no ->. Write inputs and output as \"mk,kn->mn\", "
      "a letter for each dimension.");
  EXPECT_EQ(
      error("mk,kn->mz"),
      "[einsum] \"mk,kn->mz\": no input has the letter z of the output. Write "
      "inputs and output as \"mk,kn->mn\", a letter for each dimension.");
  EXPECT_EQ(
      error("mm,kn->kn"),
      "[einsum] \"mm,kn->kn\": the letter m stands twice in one tensor. Write "
      "inputs and output as \"mk,kn->mn\", a letter for each dimension.");
  EXPECT_EQ(
      error("m k,kn->mn"),
      "[einsum] \"m k,kn->mn\": ' ' is neither a letter nor 1. Write inputs "
      "and output as \"mk,kn->mn\", a letter for each dimension.");
}

} // namespace
} // namespace dtensor::testing
