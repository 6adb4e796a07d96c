// SPDX-License-Identifier: BSD-3-Clause
// Compares with tests/golden/refused_operators.txt. It lists every operator of
// the namespace aten that a file must not call, and each operator that it may
// call although its name begins with an underscore. To review a change, run
// with DTENSOR_UPDATE_GOLDEN=1 and look at the difference.
#include "exported.h"

#include <dtensor/dtensor.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

namespace dtensor {
namespace TEST_SOURCE {

constexpr std::string_view kAten = "aten::";

struct Overloads {
  std::set<std::string> allowed;
  std::set<std::string> refused;
};

std::map<std::string, Overloads> overloads_by_name() {
  std::map<std::string, Overloads> all;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!name.name.starts_with(kAten) || !op) {
      continue;
    }
    auto& overloads = all[name.name.substr(kAten.size())];
    (only_computes(op->schema()) ? overloads.allowed : overloads.refused)
        .insert(name.overload_name);
  }
  return all;
}

std::set<std::string> lines_now() {
  std::set<std::string> lines;
  for (const auto& [name, overloads] : overloads_by_name()) {
    if (overloads.allowed.empty()) {
      lines.insert("refused " + name);
      continue;
    }
    for (const auto& overload : overloads.refused) {
      lines.insert("refused " + name + "." + overload);
    }
    if (name.starts_with("_")) {
      lines.insert("allowed " + name);
    }
  }
  return lines;
}

std::set<std::string> lines_of(const std::filesystem::path& path) {
  std::set<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.insert(line);
  }
  return lines;
}

TEST(AllowedOperators, MatchTheGoldenList) {
  const auto path = std::filesystem::path(DTENSOR_TESTS_DIR) / "golden" /
      "refused_operators.txt";
  const auto now = lines_now();
  if (std::getenv("DTENSOR_UPDATE_GOLDEN") != nullptr) {
    std::ofstream file(path);
    for (const auto& line : now) {
      file << line << "\n";
    }
  }
  const auto golden = lines_of(path);
  ASSERT_GT(golden.size(), 300U);
  if (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 13) {
    EXPECT_EQ(now, golden);
  }
  // Other LibTorch versions have other operators, to which the same rule
  // applies.
  const auto all = overloads_by_name();
  for (const auto& line : golden) {
    const auto name = line.substr(line.find(' ') + 1);
    if (all.count(name) > 0 && line.starts_with("refused ")) {
      EXPECT_TRUE(all.at(name).allowed.empty()) << name;
    }
  }
}

// The rule checks argument types as well as names.
TEST(AllowedOperators, DoNotAcceptFilesStoragesStreamsOrObjects) {
  for (const auto* schema :
       {"aten::new_thing(str filename) -> Tensor",
        "aten::new_thing(Tensor self, Storage source) -> Tensor",
        "aten::new_thing(Tensor self, Stream s) -> Tensor",
        "aten::new_thing(Tensor self, Any x) -> Tensor",
        "aten::new_thing(Tensor self, Dict(str, Tensor) x) -> Tensor",
        "aten::new_thing(Tensor self, Generator generator) -> Tensor",
        "aten::new_thing(Tensor self, str[] names) -> Tensor",
        "aten::new_thing(Tensor self, bool unsafe=False) -> Tensor",
        "aten::_new_thing(Tensor self) -> Tensor",
        "other::new_thing(Tensor self) -> Tensor"}) {
    EXPECT_FALSE(only_computes(torch::jit::parseSchema(schema))) << schema;
  }
  for (const auto* schema :
       {"aten::new_thing(Tensor self, SymInt[]? size, Scalar? s, Tensor?[] t, "
        "ScalarType? dtype, Layout? layout, Device? device, "
        "MemoryFormat? memory_format, Generator? generator, bool b, float f, "
        "str reduce) -> Tensor",
        "aten::_foreach_new(Tensor[] self) -> Tensor[]"}) {
    EXPECT_TRUE(only_computes(torch::jit::parseSchema(schema))) << schema;
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
