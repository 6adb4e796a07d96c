// SPDX-License-Identifier: BSD-3-Clause
// Compares the choice of propagate(), one mesh dimension after the other, with
// the cheapest combination of strategies on the whole mesh.
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/propagate.h>
#include <dtensor/ops/propagate_impl.h>
#include <dtensor/testing/fake_world.h>
#include <gtest/gtest.h>
#include <tests/ops/operands.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace dtensor::testing {
namespace TEST_SOURCE {

// A call whose tensors are given by their shapes, with the remaining arguments.
struct Problem {
  const char* op;
  const char* overload;
  std::vector<std::vector<int64_t>> shapes;
  std::function<torch::jit::Stack(const std::vector<at::Tensor>&)> args;
};

std::vector<Problem> problems() {
  using T = std::vector<at::Tensor>;
  using Stack = torch::jit::Stack;
  return {
      {"aten::add",
       "Tensor",
       {{16, 32}, {16, 32}},
       [](const T& t) {
         return Stack{t[0], t[1], 1};
       }},
      {"aten::add",
       "Tensor",
       {{16, 32}, {32}},
       [](const T& t) {
         return Stack{t[0], t[1], 1};
       }},
      {"aten::mm",
       "",
       {{16, 64}, {64, 32}},
       [](const T& t) {
         return Stack{t[0], t[1]};
       }},
      {"aten::addmm",
       "",
       {{32}, {16, 64}, {64, 32}},
       [](const T& t) {
         return Stack{t[0], t[1], t[2], 1, 1};
       }},
      {"aten::bmm",
       "",
       {{8, 16, 24}, {8, 24, 32}},
       [](const T& t) {
         return Stack{t[0], t[1]};
       }},
      {"aten::_softmax",
       "",
       {{16, 32}},
       [](const T& t) {
         return Stack{t[0], 1, false};
       }},
      {"aten::native_layer_norm",
       "",
       {{16, 8, 32}, {32}, {32}},
       [](const T& t) {
         return Stack{t[0], std::vector<int64_t>{32}, t[1], t[2], 1e-5};
       }},
      {"aten::where",
       "self",
       {{16, 32}, {16, 32}, {16, 1}},
       [](const T& t) {
         return Stack{t[0] > 0, t[1], t[2]};
       }},
  };
}

Placement draw(int64_t ndim, bool partial, std::mt19937& random) {
  const auto kind = static_cast<int64_t>(random() % (partial ? 4u : 3u));
  if (kind == 3) {
    return Partial();
  }
  return kind == 0 ? Placement(Replicate())
                   : Shard(static_cast<int64_t>(random()) % ndim);
}

// Returns the cost of a combination in bytes, as propagate() counts them.
double cost_of(const OpCall& call, const std::vector<Strategy>& per_dim) {
  double cost = 0;
  for (size_t m = 0; m < per_dim.size(); ++m) {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      cost += transition_cost(
          *call.inputs[i].spec, static_cast<int64_t>(m), per_dim[m].inputs[i]);
    }
  }
  return cost;
}

double cheapest(const OpCall& call, const OpRule& rule) {
  std::vector<Strategies> options;
  size_t combinations = 1;
  for (int64_t m = 0; m < call.mesh.ndim(); ++m) {
    options.push_back(candidates(call, rule, m));
    combinations *= options.back().size();
  }
  auto best = std::numeric_limits<double>::infinity();
  for (size_t c = 0; c < combinations; ++c) {
    std::vector<Strategy> per_dim;
    size_t rest = c;
    for (const auto& of_dim : options) {
      per_dim.push_back(of_dim[rest % of_dim.size()]);
      rest /= of_dim.size();
    }
    best = std::min(best, cost_of(call, per_dim));
  }
  return best;
}

double chosen(const OpCall& call, const Decision& decision) {
  std::vector<Strategy> per_dim(static_cast<size_t>(call.mesh.ndim()));
  for (size_t m = 0; m < per_dim.size(); ++m) {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const auto& spec =
          decision.inputs[i] ? decision.inputs[i] : call.inputs[i].spec;
      per_dim[m].inputs.push_back(spec->placements()[m]);
    }
  }
  return cost_of(call, per_dim);
}

OpCall call_of(
    const detail::OpInfo& info,
    const torch::jit::Stack& stack,
    const DeviceMesh& mesh) {
  std::vector<OpInput> inputs;
  for (size_t arg = 0; arg < stack.size(); ++arg) {
    if (stack[arg].isTensor()) {
      inputs.push_back(
          {DTensor(stack[arg].toTensor()).spec(), static_cast<int>(arg)});
    }
  }
  OpCall call(info.op.schema(), stack, mesh, std::move(inputs));
  call.outputs = *detail::infer_outputs(info, call);
  return call;
}

at::Tensor placed(
    const std::vector<int64_t>& sizes,
    const DeviceMesh& mesh,
    bool partial,
    std::mt19937& random) {
  Placements layout;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    layout.push_back(draw(static_cast<int64_t>(sizes.size()), partial, random));
  }
  const auto spec = Spec::make(mesh, layout, sizes, at::kFloat);
  FromLocalOptions options;
  options.shape = sizes;
  return DTensor::from_local(
      at::ones(spec->local_sizes()), mesh, layout, options);
}

void expect_optimal(const std::vector<int64_t>& mesh_shape, bool partial) {
  std::mt19937 random(7);
  const auto ranks = c10::multiply_integers(mesh_shape);
  std::string wrong;
  with_fake_world(0, ranks, [&] {
    const auto mesh = init_device_mesh(at::kCPU, mesh_shape);
    for (const auto& problem : problems()) {
      const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
          problem.op, problem.overload);
      const detail::OpInfo info(op);
      for (int draw_number = 0; draw_number < 60; ++draw_number) {
        std::vector<at::Tensor> tensors;
        for (const auto& sizes : problem.shapes) {
          tensors.push_back(placed(sizes, mesh, partial, random));
        }
        const auto stack = problem.args(tensors);
        const auto call = call_of(info, stack, mesh);
        const auto decision = propagate(call, *info.rule, {});
        const auto mine = chosen(call, decision);
        const auto best = cheapest(call, *info.rule);
        if (!(mine <= best * (1 + 1e-9)) || !std::isfinite(best)) {
          wrong += c10::str(problem.op, ": ", mine, " for ", best, " of");
          for (const auto& input : call.inputs) {
            wrong += " " + to_string(*input.spec);
          }
          wrong += "\n";
        }
      }
    }
  });
  EXPECT_EQ(wrong, "");
}

class Propagate : public ::testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(Propagate, MovesTheFewestBytesOfAllCombinations) {
  expect_optimal(GetParam(), /*partial=*/false);
}

TEST_P(Propagate, WithPartialOperandsToo) {
  expect_optimal(GetParam(), /*partial=*/true);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    Propagate,
    ::testing::Values(
        std::vector<int64_t>{2},
        std::vector<int64_t>{4},
        std::vector<int64_t>{2, 2},
        std::vector<int64_t>{2, 4},
        std::vector<int64_t>{2, 2, 2}));

} // namespace TEST_SOURCE
} // namespace dtensor::testing
