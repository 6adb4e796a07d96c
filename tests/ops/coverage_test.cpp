// SPDX-License-Identifier: BSD-3-Clause
// Operators of LibTorch that no rule covers. Each has a reason in
// tests/golden/without_rule.txt, as "regular expression | reason".
#include "tests/torch_version.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <dtensor/ops/install/kernels_impl.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/variants/variants_impl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace dtensor::testing {
namespace TEST_SOURCE {

using c10::DispatchKey;
using detail::OpInfo;

struct Reason {
  std::string text;
  std::regex names;
  bool is_used = false;
};

std::vector<Reason> reasons() {
  std::ifstream file(
      std::filesystem::path(DTENSOR_TESTS_DIR) / "golden" / "without_rule.txt");
  std::vector<Reason> all;
  for (std::string line; std::getline(file, line);) {
    const auto end = line.find(" | ");
    if (!line.starts_with("#") && end != std::string::npos) {
      all.push_back({line, std::regex(line.substr(0, end))});
    }
  }
  return all;
}

bool holds_tensor(const c10::Argument& argument) {
  return argument.type()->str().find("Tensor") != std::string::npos;
}

// Returns true if a program may call the operator with tensors on a CPU. Forms
// with out are excluded, because they follow from their operator.
bool takes_tensors_on_cpu(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  const bool runs = op.hasKernelForDispatchKey(DispatchKey::CPU) ||
      op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(
          DispatchKey::CompositeExplicitAutogradNonFunctional);
  const bool is_out =
      std::any_of(arguments.begin(), arguments.end(), [](const auto& a) {
        return a.is_out();
      });
  return runs && !is_out &&
      std::any_of(arguments.begin(), arguments.end(), [](const auto& a) {
           return holds_tensor(a);
         });
}

// Returns true if the operator has a rule, or follows from an operator that has
// a rule.
bool is_covered(const c10::OperatorHandle& op) {
  const OpInfo info(op);
  const auto from = [](const std::optional<c10::OperatorHandle>& other) {
    return other && is_covered(*other);
  };
  return info.rule != nullptr || info.traits.gathers ||
      detail::is_composite(op) || detail::keeps_its_kernel(op) ||
      (info.in_place && from(detail::functional_of_in_place(op)));
}

std::vector<std::string> uncovered() {
  std::set<std::string> names;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && name.name.starts_with("aten::") && takes_tensors_on_cpu(*op) &&
        !is_covered(*op)) {
      names.insert(OpInfo(*op).name.substr(6));
    }
  }
  return {names.begin(), names.end()};
}

TEST(Coverage, OperatorsWithoutARuleHaveAReason) {
  auto known = reasons();
  ASSERT_FALSE(known.empty());
  std::string unexplained;
  for (const auto& name : uncovered()) {
    const auto reason =
        std::find_if(known.begin(), known.end(), [&](Reason& r) {
          return std::regex_match(name, r.names);
        });
    if (reason == known.end()) {
      unexplained += name + "\n";
    } else {
      reason->is_used = true;
    }
  }
  if (TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR != 13) {
    GTEST_SKIP() << "other operators:\n" << unexplained;
  }
  EXPECT_EQ(unexplained, "");
  for (const auto& reason : known) {
    EXPECT_TRUE(reason.is_used) << reason.text;
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
