// SPDX-License-Identifier: BSD-3-Clause
// CommDebugMode's noise levels: the operators of each level, and their modules.
#include <ATen/record_function.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/parallel/module_hooks.h>
#include <dtensor/parallel/nn_modules.h>
#include <dtensor/tensor/factories.h>
#include <tests/debug/json.h>
#include <tests/parallel/modules.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
using namespace dtensor::testing;

// Returns the lines below the table of collectives, without empty lines.
std::vector<std::string> lines(const CommDebugMode& comm, int64_t level) {
  auto text = comm.generate_comm_debug_tracing_table(level);
  const auto table = comm.generate_comm_debug_tracing_table();
  EXPECT_EQ(text.compare(0, table.size(), table), 0);
  std::istringstream rest(text.substr(table.size()));
  std::vector<std::string> all;
  for (std::string line; std::getline(rest, line);) {
    if (!line.empty()) {
      all.push_back(line);
    }
  }
  return all;
}

std::vector<std::string> unindented(std::vector<std::string> lines) {
  for (auto& line : lines) {
    line.erase(0, line.find_first_not_of(' '));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

// Returns the operators of one pass of a module, from the JSON: name and
// operands.
std::vector<std::string> operators(
    const CommDebugMode& comm,
    int64_t level,
    const std::string& module,
    const std::string& pass) {
  const auto json = read_json(comm.generate_json_dump(level));
  std::vector<std::string> all;
  for (const auto& item : json["modules"].items) {
    if (item["name"].text == module) {
      for (const auto& op : item[pass].items) {
        auto text = op["name"].text;
        for (const auto& operand : op["operands"].items) {
          text += " " + operand.text;
        }
        all.push_back(text);
      }
    }
  }
  return all;
}

bool has(const std::vector<std::string>& all, const std::string& begin) {
  return std::any_of(all.begin(), all.end(), [&](const std::string& text) {
    return text.starts_with(begin);
  });
}

using Lines = std::vector<std::string>;

template <class Fn>
void on_two_ranks(const Fn& fn) {
  run_ranks(2, [&] { fn(init_device_mesh(at::kCPU, {2}, {"tp"})); });
}

Mlp styled_mlp(const DeviceMesh& mesh) {
  auto mlp = filled(Mlp(4, 8));
  parallelize_module(*mlp, mesh, mlp_plan());
  return mlp;
}

TEST(Operators, EachLevelIncludesTheOneBelow) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = styled_mlp(mesh);
    CommDebugMode comm(*mlp);
    mlp(uniform({3, 4}, 3)).sum().backward();
    std::ostringstream printed;
    printed << comm;
    EXPECT_EQ(printed.str(), comm.generate_comm_debug_tracing_table(0));
    EXPECT_TRUE(lines(comm, 0).empty());
    for (int64_t level = 1; level < 3; ++level) {
      const auto fewer = unindented(lines(comm, level));
      const auto more = unindented(lines(comm, level + 1));
      EXPECT_LT(fewer.size(), more.size()) << level;
      EXPECT_TRUE(
          std::includes(more.begin(), more.end(), fewer.begin(), fewer.end()))
          << level;
    }
    EXPECT_FALSE(has(unindented(lines(comm, 2)), "aten::t("));
    EXPECT_TRUE(has(unindented(lines(comm, 3)), "aten::t("));
  });
}

TEST(Operators, OnDTensorsAreShownWithTheirLayoutsByModule) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = styled_mlp(mesh);
    CommDebugMode comm(*mlp);
    mlp(uniform({3, 4}, 3)).sum().backward();
    const auto shown = lines(comm, 1);
    const auto at =
        std::find(shown.begin(), shown.end(), "  w1  torch::nn::LinearImpl");
    ASSERT_GT(shown.end() - at, 4);
    EXPECT_EQ(
        Lines(at, at + 5),
        (Lines{
            "  w1  torch::nn::LinearImpl",
            "    weight: f64[8, 4] on (tp=2): S(0)",
            "    bias: f64[8] on (tp=2): S(0)",
            "    forward",
            "      aten::addmm(f64[8] S(0), f64[3, 4], f64[4, 8] S(1)) on "
            "(tp=2)"}));
    EXPECT_EQ(
        operators(comm, 1, "w2", "forward"),
        (Lines{"aten::addmm f64[4] R f64[3, 4] f64[8, 4] S(0)"}));
    const Lines communication = {"      all_reduce on tp, 96 bytes"};
    EXPECT_NE(
        std::search(
            shown.begin(),
            shown.end(),
            communication.begin(),
            communication.end()),
        shown.end());
  });
}

TEST(Operators, EqualCallsAreOneEntry) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = styled_mlp(mesh);
    CommDebugMode comm(*mlp);
    const auto step = [&] {
      mlp->zero_grad();
      mlp(uniform({3, 4}, 3)).sum().backward();
    };
    step();
    comm.reset();
    EXPECT_EQ(comm.generate_json_dump(), "[\n]\n");
    EXPECT_TRUE(operators(comm, 3, "w1", "forward").empty());
    step();
    step();
    const auto twice = lines(comm, 3);
    step();
    EXPECT_EQ(lines(comm, 3).size(), twice.size());
    EXPECT_EQ(operators(comm, 1, "w1", "forward").size(), 1);
    EXPECT_TRUE(
        has(unindented(lines(comm, 1)),
            "aten::addmm(f64[8] S(0), f64[3, 4], f64[4, 8] S(1)) on (tp=2), 3 "
            "calls"));
  });
}

TEST(Operators, WithoutAModelStyledModulesAreNamed) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = styled_mlp(mesh);
    CommDebugMode comm;
    mlp(uniform({3, 4}, 3)).sum().backward();
    EXPECT_EQ(operators(comm, 1, "w1", "forward").size(), 1);
    EXPECT_EQ(operators(comm, 1, "w2", "forward").size(), 1);
    EXPECT_FALSE(has(lines(comm, 1), "  w1"));
    EXPECT_TRUE(has(lines(comm, 1), "w1"));
  });
}

TEST(Operators, OfAPlainModelAreItsModulesForwardAndBackward) {
  auto mlp = filled(Mlp(4, 8));
  CommDebugMode comm(*mlp);
  mlp(uniform({3, 4}, 3)).sum().backward();
  for (const auto* module : {"w1", "w2"}) {
    EXPECT_TRUE(operators(comm, 1, module, "forward").empty());
    EXPECT_TRUE(has(operators(comm, 2, module, "forward"), "aten::addmm"));
    // The weight gradient is a matrix product.
    EXPECT_TRUE(has(operators(comm, 2, module, "backward"), "aten::mm"))
        << comm.generate_comm_debug_tracing_table(3);
  }
  // Functional gelu and code around the model belong to no module.
  EXPECT_TRUE(has(operators(comm, 2, "", "forward"), "aten::gelu"));
  EXPECT_TRUE(has(operators(comm, 2, "", "forward"), "aten::sum"));
  EXPECT_TRUE(has(operators(comm, 2, "", "backward"), "aten::gelu_backward"));
}

TEST(Operators, OptimizerWritesBelongToNoModule) {
  auto mlp = filled(Mlp(4, 8));
  mlp(uniform({3, 4}, 3)).sum().backward();
  torch::optim::SGD optimizer(mlp->parameters(), 0.1);
  CommDebugMode comm(*mlp);
  optimizer.step();
  EXPECT_TRUE(operators(comm, 3, "w1", "forward").empty());
  EXPECT_TRUE(has(operators(comm, 3, "", "forward"), "aten::add_.Tensor"));
}

struct SquareImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return x * x;
  }
};
DTENSOR_MODULE(Square);

TEST(Operators, HookedModulesAreNamedWhileTheModeLives) {
  torch::nn::Sequential model(Square(), torch::nn::Linear(4, 4));
  const auto square = std::dynamic_pointer_cast<ModuleHooks>(model->ptr(0));
  ASSERT_NE(square, nullptr);
  {
    CommDebugMode comm(*model);
    EXPECT_EQ(square->module_name(), "0");
    model->forward(torch::ones({2, 4}, torch::requires_grad()))
        .sum()
        .backward();
    EXPECT_TRUE(has(operators(comm, 2, "0", "forward"), "aten::mul"));
    EXPECT_TRUE(has(operators(comm, 2, "0", "backward"), "aten::mul"));
    EXPECT_THAT(
        lines(comm, 2),
        ::testing::Contains(
            ::testing::MatchesRegex("  0  dtensor::.*::SquareImpl")))
        << comm;
  }
  EXPECT_TRUE(square->module_name().empty());
}

TEST(Operators, ListsAreOneOperand) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const at::Tensor x = dtensor::ones({4, 2}, mesh, {Shard(0)});
    CommDebugMode comm;
    at::cat({x, x, x}, 1);
    EXPECT_EQ(
        operators(comm, 1, "", "forward"),
        (Lines{"aten::cat 3 like f32[4, 2] S(0)"}));
  });
}

TEST(Operators, TrivialOperatorsHideTheirCalls) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const at::Tensor x = dtensor::ones({4, 7}, mesh, {Shard(0)});
    CommDebugMode comm;
    x.t();
    EXPECT_EQ(operators(comm, 1, "", "forward"), Lines());
    EXPECT_EQ(operators(comm, 2, "", "forward"), Lines());
    EXPECT_EQ(
        operators(comm, 3, "", "forward"), (Lines{"aten::t f32[4, 7] S(0)"}));
    // Called operators have plain operands.
    EXPECT_TRUE(has(unindented(lines(comm, 3)), "aten::transpose.int("));
  });
}

TEST(Operators, NestAndCostNothingAfterwards) {
  EXPECT_FALSE(at::hasCallbacks());
  {
    CommDebugMode outer;
    {
      const CommDebugMode inner;
      at::ones({2}).add(1);
      EXPECT_TRUE(has(operators(inner, 2, "", "forward"), "aten::add"));
      EXPECT_FALSE(has(operators(inner, 2, "", "forward"), "aten::mul"));
    }
    at::ones({2}).mul(2);
    EXPECT_TRUE(has(operators(outer, 2, "", "forward"), "aten::add"));
    EXPECT_TRUE(has(operators(outer, 2, "", "forward"), "aten::mul"));
    EXPECT_TRUE(at::hasCallbacks());
  }
  EXPECT_FALSE(at::hasCallbacks());
}

TEST(Operators, OperatorsOfOtherRanksAreSeparate) {
  run_ranks(2, [](int64_t rank) {
    CommDebugMode comm;
    if (rank == 0) {
      at::ones({2}).mul(2);
    } else {
      at::ones({2}).div(2);
    }
    const auto all = operators(comm, 2, "", "forward");
    EXPECT_EQ(has(all, "aten::mul"), rank == 0);
    EXPECT_EQ(has(all, "aten::div"), rank == 1);
  });
}

TEST(Operators, ParametersAndLayoutsOfTheModel) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = filled(Mlp(4, 8));
    parallelize_module(*mlp, mesh, {{"w1", ColwiseParallel()}});
    const CommDebugMode comm(*mlp);
    const auto parameters = comm.get_parameter_info();
    EXPECT_EQ(parameters.size(), 2);
    const auto& weight = parameters.at("w1").at("weight");
    EXPECT_TRUE(is_dtensor(weight));
    EXPECT_FALSE(weight.requires_grad());
    EXPECT_TRUE(at::equal(full(weight), full(mlp->w1->weight)));
    EXPECT_FALSE(is_dtensor(parameters.at("w2").at("bias")));
    EXPECT_EQ(
        comm.get_sharding_info(),
        (std::map<std::string, Placements>{
            {"w1.weight", {Shard(0)}}, {"w1.bias", {Shard(0)}}}));
  });
}

std::string read_file(const std::string& name) {
  std::ifstream file(name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Operators, GoToFiles) {
  CommDebugMode comm;
  at::ones({2}).mul(2);
  const auto file = ::testing::TempDir() + "comm_debug_mode.txt";
  comm.log_comm_debug_tracing_table_to_file(file, 2);
  EXPECT_EQ(read_file(file), comm.generate_comm_debug_tracing_table(2));
  comm.generate_json_dump(file, 2);
  EXPECT_EQ(read_file(file), comm.generate_json_dump(2));
  std::remove(file.c_str());
}

TEST(Operators, ErrorsGiveAdvice) {
  const CommDebugMode comm;
  EXPECT_EQ(
      error_of([&] { comm.generate_comm_debug_tracing_table(4); }),
      "[CommDebugMode] unknown noise level 4. Pass 0 (collectives), 1 (and "
      "operators on DTensors), 2 (and others) or 3 (all).");
  EXPECT_EQ(
      error_of([&] { comm.generate_json_dump(-1); }),
      "[CommDebugMode] unknown noise level -1. Pass 0 (collectives), 1 (and "
      "operators on DTensors), 2 (and others) or 3 (all).");
  EXPECT_EQ(
      error_of([&] { comm.get_sharding_info(); }),
      "[CommDebugMode] get_sharding_info() needs the parameters of a model, "
      "but the mode was created without one. Create it as CommDebugMode "
      "comm(*model).");
  EXPECT_EQ(
      error_of([&] { comm.generate_json_dump("/no/such/folder/x"); }),
      "[CommDebugMode] cannot write \"/no/such/folder/x\": No such file or "
      "directory. Pass the name of a file in a folder that exists.");
}

TEST(Operators, OfARangeThatBeganBeforeAResetAreShown) {
  CommDebugMode comm;
  {
    RECORD_FUNCTION("test::range", std::vector<c10::IValue>{});
    at::ones({2}).relu();
    comm.reset();
    at::ones({2}).abs();
  }
  const auto all = unindented(lines(comm, 3));
  EXPECT_TRUE(has(all, "aten::abs("));
  EXPECT_FALSE(has(all, "aten::relu("));
}

TEST(Operators, NestedTensorsHaveNoSizes) {
  const auto nested =
      at::_nested_tensor_from_tensor_list({at::ones({2}), at::ones({3})});
  CommDebugMode comm;
  nested.relu();
  EXPECT_TRUE(has(unindented(lines(comm, 3)), "aten::relu(f32[nested])"))
      << comm.generate_comm_debug_tracing_table(3);
}

} // namespace TEST_SOURCE
} // namespace dtensor
