// SPDX-License-Identifier: BSD-3-Clause
// Tests plans that are found in the code of TorchScript models.
#include "tests/program/exported.h"

#include <dtensor/contrib/torchscript/parallelize_script.h>
#include <dtensor/dtensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <unistd.h>

#include <filesystem>
#include <functional>

namespace dtensor {
namespace TEST_SOURCE {

using test_program::exported;
using test_program::python_runs;
using torch::jit::Module;

constexpr const char* kWhole = "# no styles: no weight is sharded\n";

// Adds a matrix (out, in) and its bias.
void add_weights(
    Module& script,
    const std::string& name,
    c10::IntArrayRef sizes) {
  const auto options = torch::TensorOptions(torch::kDouble).requires_grad(true);
  Module part("__torch__.Part");
  part.register_parameter("weight", torch::randn(sizes, options), false);
  part.register_parameter("bias", torch::randn(sizes[0], options), false);
  script.register_module(name, part);
}

// Returns a module with up (24, 8), down (8, 24), last (8, 8) and the given
// code.
Module mlp(const std::string& code) {
  torch::manual_seed(3);
  Module script("__torch__.Mlp");
  add_weights(script, "up", {24, 8});
  add_weights(script, "down", {8, 24});
  add_weights(script, "last", {8, 8});
  script.register_attribute("training", c10::BoolType::get(), true);
  script.define(code);
  return script;
}

constexpr const char* kMlp = R"(
def forward(self, x):
    h = torch.relu(torch.linear(x, self.up.weight, self.up.bias))
    return torch.linear(h, self.down.weight, self.down.bias)
)";

constexpr const char* kMlpPlan =
    "up    colwise\n"
    "down  rowwise\n";

std::string plan_of(
    const std::string& code,
    const std::vector<c10::IValue>& inputs = {}) {
  return c10::str(find_tp_plan(mlp(code), inputs));
}

struct Results {
  at::Tensor output;
  std::map<std::string, at::Tensor> gradients;
};

// Returns the results of the third call, because TorchScript optimizes its
// graph in the first calls.
Results results_of(Module& script, const at::Tensor& x) {
  Results results;
  for (int call = 0; call < 3; ++call) {
    for (const auto& p : script.named_parameters()) {
      p.value.mutable_grad() = at::Tensor();
    }
    const auto y = full_tensor(script.forward({x}).toTensor());
    (y * y).sum().backward();
    results.output = y.detach();
  }
  for (const auto& p : script.named_parameters()) {
    if (p.value.grad().defined()) {
      results.gradients[p.name] = full_tensor(p.value.grad());
    }
  }
  return results;
}

void expect_same(const Results& ours, const Results& truth) {
  EXPECT_TRUE(at::allclose(ours.output, truth.output, 1e-10, 1e-10));
  ASSERT_EQ(ours.gradients.size(), truth.gradients.size());
  for (const auto& [name, gradient] : truth.gradients) {
    EXPECT_TRUE(at::allclose(ours.gradients.at(name), gradient, 1e-10, 1e-10))
        << name;
  }
}

// Returns the number of collectives of one forward and backward pass.
int64_t collectives_of(Module& script, const at::Tensor& x) {
  const CommDebugMode counted;
  full_tensor(script.forward({x}).toTensor()).sum().backward();
  return counted.get_total_counts();
}

using MakeScript = std::function<Module()>;

// Expects find_tp_plan() to return `plan` on ranks. With this plan, the script
// computes its plain results and communicates as much as with
// parallelize_script().
void expect_found(
    const MakeScript& make,
    const at::Tensor& x,
    const std::string& plan) {
  auto plain = make();
  const auto truth = results_of(plain, x);
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      const auto given = replicate_tensor(x, mesh);
      const auto scope = implicit_replication();
      auto script = make();
      EXPECT_EQ(to_string(tp_transform(script, mesh)), plan);
      expect_same(results_of(script, given), truth);
      auto by_hand = make();
      const auto modules =
          parallelize_script(by_hand, mesh, make_plan(parse_plan(plan)));
      expect_same(results_of(by_hand, given), truth);
      EXPECT_EQ(collectives_of(script, given), collectives_of(by_hand, given));
    });
  }
}

at::Tensor rows() {
  torch::manual_seed(5);
  return torch::randn({4, 8}, torch::kDouble);
}

TEST(ScriptPlans, ShardAnMlp) {
  expect_found([] { return mlp(kMlp); }, rows(), kMlpPlan);
  auto script = mlp(kMlp);
  EXPECT_EQ(c10::str(find_tp_plan(script)), kMlpPlan);
  EXPECT_EQ(c10::str(find_tp_plan(script, {rows()})), kMlpPlan);
}

Module loaded(const std::string& name) {
  auto path = exported(name);
  return torch::jit::load(path.replace(path.size() - 4, 4, ".ts"));
}

TEST(ScriptPlans, ShardAnMlpFromPython) {
  for (const std::string name : {"scripted_mlp", "traced_mlp"}) {
    SCOPED_TRACE(name);
    expect_found(
        [&] { return loaded(name); },
        rows(),
        "0  colwise\n"
        "2  rowwise\n");
  }
}

constexpr const char* kTransformerPlan =
    "tokens           rowwise\n"
    "blocks.*.attn.q  colwise multiple_of=4\n"
    "blocks.*.attn.k  colwise multiple_of=4\n"
    "blocks.*.attn.v  colwise multiple_of=4\n"
    "blocks.*.attn.o  rowwise multiple_of=4\n"
    "blocks.*.up      colwise\n"
    "blocks.*.down    rowwise\n"
    "head             colwise\n";

// The plan equals that of the exported program of the same model.
TEST(ScriptPlans, ShardATransformer) {
  const auto program = load_program(exported("transformer"));
  EXPECT_EQ(to_string(find_tp_plan(program)), kTransformerPlan);
  const auto ids = python_runs("script")[0].inputs[0];
  for (const std::string name : {"scripted", "traced"}) {
    SCOPED_TRACE(name);
    expect_found([&] { return loaded(name); }, ids, kTransformerPlan);
    EXPECT_EQ(to_string(find_tp_plan(loaded(name), {ids})), kTransformerPlan);
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
      auto script = loaded(name);
      tp_transform(script, mesh);
      const auto scope = implicit_replication();
      const torch::NoGradGuard no_grad;
      const CommDebugMode counted;
      script.forward({replicate_tensor(ids, mesh)});
      EXPECT_EQ(counted.get_total_counts(), 1 + 2 * 2);
    });
  }
}

// PyTorch's encoder layer gets a plan in both modes. In eval mode, it checks
// whether gradients are recorded and may call one fused operator.
TEST(ScriptPlans, ShardAnEncoderLayer) {
  torch::manual_seed(7);
  const auto x = torch::randn({2, 7, 12}, torch::kDouble);
  expect_found(
      [] { return loaded("scripted_encoder"); },
      x,
      "self_attn           colwise fused_projections=3 multiple_of=4\n"
      "self_attn.out_proj  rowwise multiple_of=4\n"
      "linear1             colwise\n"
      "linear2             rowwise\n");
  auto script = loaded("scripted_encoder");
  script.eval();
  EXPECT_EQ(c10::str(find_tp_plan(script)), kWhole);
  const torch::NoGradGuard no_grad;
  const auto truth = script.forward({x}).toTensor();
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto scope = implicit_replication();
    auto cut = loaded("scripted_encoder");
    tp_transform(cut, mesh);
    cut.eval(); // its weights stay sharded
    const auto y = cut.forward({replicate_tensor(x, mesh)}).toTensor();
    EXPECT_TRUE(at::allclose(full_tensor(y), truth, 1e-10, 1e-10));
  });
}

// A pair takes one all-reduce in the forward pass. The backward pass has none,
// because the input does not require a gradient.
TEST(ScriptPlans, TakeOneCollectiveForAPair) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto script = mlp(kMlp);
      tp_transform(script, mesh);
      EXPECT_EQ(
          collectives_of(script, replicate_tensor(rows(), mesh)),
          ranks == 1 ? 0 : 1);
    });
  }
}

TEST(ScriptPlans, FindProductsByTransposedWeights) {
  for (const std::string product :
       {"torch.addmm(self.B.bias, A, self.B.weight.t())",
        "torch.matmul(A, self.B.weight.t()) + self.B.bias",
        "torch.matmul(A, torch.transpose(self.B.weight, -1, -2)) + self.B.bias",
        "torch.mm(A, torch.transpose(self.B.weight, 1, 0))"}) {
    const auto call = [&](const std::string& input, const std::string& module) {
      auto text = product;
      text.replace(text.find("A,"), 1, input);
      for (auto at = text.find("self.B"); at != std::string::npos;
           at = text.find("self.B")) {
        text.replace(at, 6, "self." + module);
      }
      return text;
    };
    const auto code = "def forward(self, x):\n    h = torch.gelu(" +
        call("x", "up") + ", approximate='none')\n    return " +
        call("h", "down") + "\n";
    SCOPED_TRACE(code);
    expect_found([&] { return mlp(code); }, rows(), kMlpPlan);
  }
}

// Products are not sharded if an operator between them needs all columns. A
// matrix (in, out) is not a linear weight.
TEST(ScriptPlans, ReplicateProductsWithoutAPair) {
  const std::string normed = R"(
def forward(self, x):
    h = torch.linear(x, self.up.weight, self.up.bias)
    h = torch.softmax(h, dim=-1)
    return torch.linear(h, self.down.weight, self.down.bias)
)";
  EXPECT_EQ(plan_of(normed), kWhole);
  EXPECT_EQ(
      plan_of(R"(
def forward(self, x):
    h = torch.relu(torch.matmul(x, self.last.weight))
    return torch.matmul(h, self.last.bias)
)"),
      kWhole);
  const auto x = rows();
  auto plain = mlp(normed);
  const auto truth = results_of(plain, x);
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto script = mlp(normed);
      EXPECT_EQ(c10::str(tp_transform(script, mesh)), kWhole);
      for (const auto& p : script.named_parameters()) {
        EXPECT_EQ(to_string(DTensor(p.value).placements()), "R") << p.name;
      }
      const auto given = replicate_tensor(x, mesh);
      expect_same(results_of(script, given), truth);
      EXPECT_EQ(collectives_of(script, given), 0);
    });
  }
}

// Branches on attributes and None are read; other branches are not.
TEST(ScriptPlans, ReplicateWeightsInUnreadCode) {
  const auto with = [](const std::string& lines) {
    return "def forward(self, x, m: Optional[Tensor] = None, n: int = 2):\n"
           "    h = torch.relu(torch.linear(x, self.up.weight, "
           "self.up.bias))\n" +
        lines + "    return h\n";
  };
  const std::string down =
      "h = torch.linear(h, self.down.weight, self.down.bias)\n";
  EXPECT_EQ(plan_of(with("    if m is None:\n        " + down)), kMlpPlan);
  EXPECT_EQ(plan_of(with("    if m is not None:\n        " + down)), kWhole);
  EXPECT_EQ(plan_of(with("    if self.training:\n        " + down)), kMlpPlan);
  EXPECT_EQ(plan_of(with("    if h.dim() > 1:\n        " + down)), kMlpPlan);
  EXPECT_EQ(plan_of(with("    if h.size(0) > 0:\n        " + down)), kWhole);
  EXPECT_EQ(
      plan_of(with("    if bool(h.sum() > 0):\n        " + down)), kWhole);
  EXPECT_EQ(plan_of(with("    for i in range(1):\n        " + down)), kWhole);
  // The attribute is used twice, and only one use can be read.
  EXPECT_EQ(
      plan_of(with(
          "    y = " + down.substr(4) +
          "    if bool(y.sum() > 0):\n        y = y + " + down.substr(4) +
          "    h = y\n")),
      kWhole);
}

// The number of nonzero elements of `x` is unknown without data.
TEST(ScriptPlans, ReplicateWeightsThatDependOnData) {
  EXPECT_EQ(
      plan_of(R"(
def forward(self, x):
    h = torch.linear(x, self.up.weight, self.up.bias)
    h = h * torch.sum(torch.nonzero(x))
    return torch.linear(h, self.down.weight, self.down.bias)
)"),
      kWhole);
}

TEST(ScriptPlans, ComputeTheSameWhereBranchesAreNotRead) {
  const auto x = rows();
  const std::string code = R"(
def forward(self, x):
    h = torch.relu(torch.linear(x, self.up.weight, self.up.bias))
    y = torch.linear(h, self.down.weight, self.down.bias)
    if bool(y.sum() > 0):
        y = torch.linear(y, self.last.weight, self.last.bias)
    else:
        y = torch.linear(y, self.last.weight)
    for i in range(2):
        y = y + torch.linear(y, self.last.weight)
    return y
)";
  expect_found([&] { return mlp(code); }, x, kMlpPlan);
}

template <class Error = c10::ValueError>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(ScriptPlans, RefuseModulesWithoutForward) {
  EXPECT_EQ(
      error_of([] { find_tp_plan(Module("__torch__.Empty")); }),
      "[find_tp_plan] the script has no method forward(). Define it, or pass a "
      "plan to parallelize_script().");
  const std::string takes =
      "[find_tp_plan] forward() takes x (Tensor), n (int), ";
  const auto two = mlp("def forward(self, x, n: int):\n    return x * n\n");
  EXPECT_EQ(
      error_of([&] { find_tp_plan(two, {rows()}); }),
      takes +
          "but the number of sample inputs is 1. Pass one for each argument "
          "that has no default.");
  EXPECT_EQ(
      error_of([&] {
        find_tp_plan(two, {rows(), 2, 3});
      }),
      takes +
          "but the number of sample inputs is 3. Pass one for each argument "
          "that has no default.");
  EXPECT_EQ(
      error_of([&] {
        find_tp_plan(two, {rows(), 2.5});
      }),
      takes +
          "but the sample input for n is a float. Pass inputs of these types.");
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto script = mlp(kMlp);
    tp_transform(script, mesh);
    EXPECT_EQ(
        error_of<c10::Error>([&] { tp_transform(script, mesh); }),
        "[find_tp_plan] the script is already parallelized: up.weight is a "
        "DTensor. Load it again.");
  });
}

// find_tp_plan() runs calls of a script that need no data, but no call that
// writes a file.
TEST(ScriptPlans, WriteNoFiles) {
  const auto folder = std::filesystem::temp_directory_path();
  const auto saved = folder / c10::str("dtensor_saved_", ::getpid());
  const auto mapped = folder / c10::str("dtensor_mapped_", ::getpid());
  torch::jit::Module script("__torch__.Writer");
  script.register_parameter("w", torch::randn({8, 8}), false);
  script.define(c10::str(
      "def forward(self, x):\n    torch.save([1, 2], '",
      saved.string(),
      "')\n    y = torch.from_file('",
      mapped.string(),
      "', True, 4)\n    return torch.linear(x, self.w, None) + y.sum()\n"));
  find_tp_plan(script, {torch::randn({4, 8})});
  EXPECT_FALSE(std::filesystem::exists(saved));
  EXPECT_FALSE(std::filesystem::exists(mapped));
}

// Processors end the process for the quotient of the smallest integer and -1.
TEST(ScriptPlans, RunNoOperatorOnDataOfTheScript) {
  torch::jit::Module script("__torch__.Divides");
  script.register_parameter("w", torch::randn({8, 8}), false);
  script.define(
      "def forward(self, x):\n"
      "    a = torch.sub(torch.tensor([-9223372036854775807]), 1)\n"
      "    b = torch.div(a, torch.tensor([-1]), rounding_mode='trunc')\n"
      "    return torch.linear(x, self.w, None) + b\n");
  EXPECT_EQ(find_tp_plan(script, {torch::randn({4, 8})}).size(), 0);
}

// --- what scripts may contain ------------------------------------------------

// Returns the plan of an MLP whose forward() has these lines, which compute h
// from h.
std::string plan_with(
    const std::string& lines,
    const std::vector<c10::IValue>& inputs = {},
    const std::string& more_arguments = "") {
  return plan_of(
      "def forward(self, x" + more_arguments +
          "):\n"
          "    h = torch.relu(torch.linear(x, self.up.weight, "
          "self.up.bias))\n" +
          lines +
          "    return torch.linear(h, self.down.weight, self.down.bias)\n",
      inputs);
}

TEST(ScriptPlans, ReadContainersOfTensors) {
  EXPECT_EQ(plan_with("    h = {'h': h, 'x': x}['h']\n"), kMlpPlan);
  EXPECT_EQ(plan_with("    h = torch.cat([h, h], dim=0)\n"), kMlpPlan);
  EXPECT_EQ(plan_with("    h = torch.stack([h, h])\n"), kMlpPlan);
  // The columns of one half are on other ranks.
  EXPECT_EQ(
      plan_with("    h = torch.cat([h[:, 12:], h[:, :12]], dim=1)\n", {rows()}),
      kWhole);
  EXPECT_EQ(plan_with("    h = h + torch.sum(h[:0].cpu())\n"), kWhole);
}

// Writes to attributes, random numbers and unknown functions are not read.
TEST(ScriptPlans, ReplicateWhatScriptsMayChange) {
  const auto make = [](const std::string& code) {
    Module script("__torch__.Changing");
    add_weights(script, "up", {24, 8});
    add_weights(script, "down", {8, 24});
    script.register_attribute("scale", c10::FloatType::get(), 2.0);
    script.register_buffer("shift", torch::ones({24}, torch::kDouble));
    script.define(code);
    return c10::str(find_tp_plan(script));
  };
  const auto with = [](const std::string& lines) {
    return "def forward(self, x):\n"
           "    h = torch.relu(torch.linear(x, self.up.weight, "
           "self.up.bias))\n" +
        lines +
        "    return torch.linear(h, self.down.weight, self.down.bias)\n";
  };
  EXPECT_EQ(make(with("    h = h * self.scale + self.shift\n")), kMlpPlan);
  EXPECT_EQ(
      make(with("    h = h * self.scale\n    self.scale = 3.0\n")), kWhole);
  EXPECT_EQ(make(with("    h = h * torch.rand([2])[0].item()\n")), kWhole);
}

// Two inputs of different sizes are found by trying.
TEST(ScriptPlans, TryCombinationsOfInputs) {
  EXPECT_EQ(
      plan_of(R"(
def forward(self, x, y):
    h = torch.relu(torch.linear(x, self.up.weight, self.up.bias))
    z = torch.linear(h, self.down.weight, self.down.bias)
    return z + torch.linear(y, self.down.weight, self.down.bias)
)"),
      kWhole);
  EXPECT_EQ(
      plan_of(R"(
def forward(self, x, y):
    h = torch.relu(torch.linear(x, self.up.weight, self.up.bias)) * y
    return torch.linear(h, self.down.weight, self.down.bias)
)"),
      kMlpPlan);
}

// TorchScript gives its lists of optional tensors a type of their own.
TEST(ScriptPlans, ComputeTheSameWithIndices) {
  expect_found(
      [] {
        return mlp(R"(
def forward(self, x):
    h = torch.relu(torch.linear(x, self.up.weight, self.up.bias))
    h = h[torch.arange(2)]
    return torch.linear(h, self.down.weight, self.down.bias)
)");
      },
      rows(),
      kMlpPlan);
}

} // namespace TEST_SOURCE
} // namespace dtensor
