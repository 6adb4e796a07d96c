// SPDX-License-Identifier: BSD-3-Clause
// DTENSOR_MODULE, the styles that use its hooks, and distribute_module.
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/parallel/nn_modules.h>
#include <dtensor/parallel/prepare_module.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

struct MixImpl : torch::nn::Module {
  std::tuple<at::Tensor, int64_t, at::Tensor> forward(
      const at::Tensor& a,
      int64_t times,
      at::Tensor b,
      std::vector<int64_t>& log) {
    log.push_back(times);
    seen = {a, b};
    return {a * times, times, b + 1};
  }
  std::vector<at::Tensor> seen;
};
DTENSOR_MODULE(Mix);

struct TwiceImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) const {
    return x * 2;
  }
};
DTENSOR_MODULE(Twice);

struct DoubleImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) {
    return x * 2;
  }
};
DTENSOR_MODULE(Double);

struct UnhookedImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) {
    return x;
  }
};
TORCH_MODULE(Unhooked);

template <class Fn>
void on_two_ranks(const Fn& fn) {
  run_ranks(2, [&] { fn(init_device_mesh(at::kCPU, {2}, {"tp"})); });
}

TEST(HooksTest, WithoutStylesNothingChanges) {
  Mix mix;
  std::vector<int64_t> log;
  const auto x = uniform({2, 2}, 1);
  const auto [a, times, b] = mix->forward(x, 3, x, log);
  EXPECT_TRUE(at::equal(a, x * 3));
  EXPECT_TRUE(at::equal(b, x + 1));
  EXPECT_EQ(times, 3);
  EXPECT_EQ(log, (std::vector<int64_t>{3}));
}

TEST(HooksTest, ConstForwardStaysConst) {
  const Twice constant;
  EXPECT_TRUE(at::equal(constant->forward(at::ones({2})), at::ones({2}) * 2));
}

// Module that appends to a cache: rebinds an argument, and adds to another.
struct AppendImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, at::Tensor& all, at::Tensor& sum) {
    all = torch::cat({all, x});
    sum.add_(x);
    return x * 2;
  }
};
DTENSOR_MODULE(Append);

struct WithAppendImpl : torch::nn::Module {
  Append append = register_module("append", Append());
  torch::nn::Linear w1 = register_module("w1", torch::nn::Linear(2, 2));
};

void expect_appends(Append& module) {
  const auto x = uniform({2, 2}, 1);
  const auto first = uniform({1, 2}, 2);
  auto all = first;
  auto sum = at::zeros({2, 2}, at::kDouble);
  const auto same_sum = sum;
  EXPECT_TRUE(at::equal(module->forward(x, all, sum), x * 2));
  EXPECT_TRUE(at::equal(all, torch::cat({first, x})));
  EXPECT_TRUE(sum.is_same(same_sum));
  EXPECT_TRUE(at::equal(sum, x));
}

TEST(HooksTest, ForwardMayRebindAReference) {
  Append with_hook;
  with_hook->add_forward_pre_hook([](const auto&) {});
  expect_appends(with_hook);
  // A plan names all modules that have hooks.
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    WithAppendImpl model;
    parallelize_module(model, mesh, {{"w1", ColwiseParallel()}});
    EXPECT_EQ(model.append->module_name(), "append");
    expect_appends(model.append);
  });
}

TEST(HooksTest, AReplacedArgumentStaysWithTheCaller) {
  Append module;
  const auto other = uniform({2, 2}, 3);
  module->add_forward_pre_hook(
      [&](const auto& inputs) { *inputs[2] = other.clone(); });
  const auto x = uniform({2, 2}, 1);
  auto all = x;
  auto sum = at::zeros({2, 2}, at::kDouble);
  const auto same_sum = sum;
  module->forward(x, all, sum);
  EXPECT_TRUE(sum.is_same(same_sum)); // forward added to the hook's tensor
  EXPECT_TRUE(at::equal(sum, at::zeros({2, 2}, at::kDouble)));
}

struct CountImpl : torch::nn::Module {
  void forward(const at::Tensor& x) {
    seen = x;
  }
  at::Tensor seen;
};
DTENSOR_MODULE(Count);

TEST(HooksTest, ForwardMayReturnNothing) {
  Count module;
  size_t outputs = 1;
  module->add_forward_pre_hook(
      [](const auto& inputs) { *inputs[0] = *inputs[0] * 3; });
  module->add_forward_hook(
      [&](const auto& tensors) { outputs = tensors.size(); });
  const auto x = uniform({2, 2}, 1);
  module->forward(x);
  EXPECT_TRUE(at::equal(module->seen, x * 3));
  EXPECT_EQ(outputs, 0);
}

TEST(PrepareModuleTest, UsesTheRootMesh) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    Mix mix;
    parallelize_module(
        *mix,
        mesh["tp"],
        PrepareModuleInputOutput(
            {.input_layouts = {Shard(1), std::nullopt},
             .desired_input_layouts = {Replicate(), std::nullopt},
             .output_layouts = {Replicate(), std::nullopt},
             .desired_output_layouts = {Shard(1), std::nullopt},
             .use_local_output = false}),
        {.keep_dtensors = true, .root_mesh = mesh});
    const auto layouts = [](const at::Tensor& t) {
      return Placements(DTensor(t).placements());
    };
    const auto whole = uniform({4, 2}, 3);
    std::vector<int64_t> log;
    const auto x = distribute_tensor(whole, mesh, {Shard(0), Shard(1)});
    const auto y = std::get<0>(mix->forward(x, 3, whole, log));
    EXPECT_EQ(layouts(mix->seen[0]), (Placements{Shard(0), Replicate()}));
    EXPECT_EQ(layouts(y), (Placements{Shard(0), Shard(1)}));
    expect_close(y, whole * 3, "of a DTensor");
    // A plain input is replicated along the other dimension.
    const auto local = part(whole, mesh["tp"], Shard(1));
    const auto z = std::get<0>(mix->forward(local, 3, whole, log));
    EXPECT_EQ(layouts(z), (Placements{Replicate(), Shard(1)}));
    expect_close(z, whole * 3, "of a plain tensor");
  });
}

// A plain output would count as replicated along the other dimension.
TEST(PrepareModuleTest, KeepsTheLayoutOnOtherDimensions) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    Mix mix;
    parallelize_module(
        *mix,
        mesh["tp"],
        PrepareModuleInput(
            {.input_layouts = {Replicate(), std::nullopt},
             .desired_input_layouts = {Replicate(), std::nullopt},
             .use_local_output = true}),
        {.keep_dtensors = true, .root_mesh = mesh});
    const auto whole = uniform({4, 2}, 3);
    std::vector<int64_t> log;
    const auto x = distribute_tensor(whole, mesh, {Shard(0), Replicate()});
    EXPECT_THAT(
        error_of([&] { mix->forward(x, 3, whole, log); }),
        ::testing::StartsWith(
            "[PrepareModuleInput] a tensor of the root module is f64[4, 2] on "
            "(dp=2, tp=2): S(0) R, and its local tensor would lose the layout "
            "on other mesh dimensions than that of the style."));
    const auto y = distribute_tensor(whole, mesh, {Replicate(), Replicate()});
    mix->forward(y, 3, whole, log);
    expect_close(mix->seen[0], whole, "replicated");
  });
}

TEST(PrepareModuleTest, InputsAndOutputsChangeLayout) {
  on_two_ranks([](const DeviceMesh& mesh) {
    Mix mix;
    parallelize_module(
        *mix,
        mesh,
        PrepareModuleInputOutput(
            {.input_layouts = {Shard(0), std::nullopt},
             .desired_input_layouts = {Replicate(), std::nullopt},
             .output_layouts = {Replicate(), std::nullopt},
             .desired_output_layouts = {Shard(1), std::nullopt},
             .use_local_output = false}));
    const auto whole = uniform({4, 2}, 3);
    const auto leaf = part(whole, mesh, Shard(0)).requires_grad_(true);
    const auto other = uniform({2, 2}, 4);
    std::vector<int64_t> log;
    const auto [a, times, b] = mix->forward(leaf, 3, other, log);
    // the caller's object, not a copy
    EXPECT_EQ(log, (std::vector<int64_t>{3}));
    EXPECT_EQ(times, 3);
    EXPECT_EQ(layout_of(mix->seen[0]), Replicate());
    EXPECT_TRUE(mix->seen[1].is_same(other));
    EXPECT_EQ(layout_of(a), Shard(1));
    expect_close(a, whole * 3, "first result");
    EXPECT_FALSE(is_dtensor(b));
    DTensor(a).to_local().sum().backward();
    expect_close(leaf.grad(), at::full({2, 2}, 3., at::kDouble), "gradient");
  });
}

TEST(PrepareModuleTest, LocalInputsAndOutputs) {
  on_two_ranks([](const DeviceMesh& mesh) {
    Twice twice;
    parallelize_module(
        *twice,
        mesh,
        PrepareModuleInputOutput(
            {.input_layouts = {Shard(0)},
             .desired_input_layouts = {Replicate()},
             .use_local_input = true,
             .output_layouts = {Replicate()},
             .desired_output_layouts = {Shard(1)}}));
    const auto whole = uniform({4, 2}, 3);
    const auto y = twice(part(whole, mesh, Shard(0)));
    EXPECT_FALSE(is_dtensor(y));
    expect_close(y, part(whole * 2, mesh, Shard(1)), "output");
  });
}

TEST(PrepareModuleTest, OnePlacementIsAListOfOne) {
  const PrepareModuleInputOptions one = {
      .input_layouts = Shard(0), .desired_input_layouts = {Replicate()}};
  EXPECT_EQ(one.input_layouts, OptionalPlacements({Shard(0)}));
  EXPECT_EQ(one.desired_input_layouts, OptionalPlacements(Replicate()));
  const PrepareModuleOutputOptions two = {
      .output_layouts = {Shard(0), std::nullopt},
      .desired_output_layouts = {std::nullopt, Partial()}};
  EXPECT_EQ(two.output_layouts.size(), 2);
  EXPECT_EQ(two.desired_output_layouts[1], Partial());
  PrepareModuleInputOutputOptions none = {
      .input_layouts = std::nullopt, .output_layouts = {}};
  EXPECT_TRUE(none.input_layouts.empty() && none.output_layouts.empty());
  none.output_layouts = Shard(1);
  EXPECT_EQ(none.output_layouts, OptionalPlacements({Shard(1)}));
  none.output_layouts = {std::nullopt};
  EXPECT_EQ(none.output_layouts.size(), 1);
}

// The example in Python's documentation.
TEST(PrepareModuleTest, AnOutputInOnePlacement) {
  on_two_ranks([](const DeviceMesh& mesh) {
    Twice twice;
    parallelize_module(
        *twice,
        mesh,
        PrepareModuleOutput(
            {.output_layouts = Replicate(),
             .desired_output_layouts = Shard(0)}));
    const auto whole = uniform({4, 2}, 3);
    expect_close(twice(whole), part(whole * 2, mesh, Shard(0)), "output");
  });
}

TEST(PrepareModuleTest, AnInputAndAnOutputInOnePlacement) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto whole = uniform({4, 2}, 3);
    Twice twice;
    parallelize_module(
        *twice,
        mesh,
        PrepareModuleInputOutput(
            {.input_layouts = Shard(0),
             .desired_input_layouts = Replicate(),
             .output_layouts = Replicate(),
             .desired_output_layouts = Shard(1)}));
    const auto y = twice(part(whole, mesh, Shard(0)));
    expect_close(y, part(whole * 2, mesh, Shard(1)), "output");

    Double twofold;
    parallelize_module(
        *twofold,
        mesh,
        PrepareModuleInput(
            {.input_layouts = Shard(0), .desired_input_layouts = Shard(1)}));
    const auto z = twofold(part(whole, mesh, Shard(0)));
    EXPECT_EQ(layout_of(z), Shard(1));
    expect_close(z, whole * 2, "input");
  });
}

TEST(PrepareModuleTest, InsideSequential) {
  on_two_ranks([](const DeviceMesh& mesh) {
    torch::nn::Sequential model(
        torch::nn::Linear(4, 4), Double(), torch::nn::Linear(4, 4));
    auto plain = filled(torch::nn::Sequential(
        torch::nn::Linear(4, 4), Double(), torch::nn::Linear(4, 4)));
    filled(model);
    parallelize_module(
        *model,
        mesh,
        {{"0", ColwiseParallel()},
         {"1",
          PrepareModuleInput(
              {.input_layouts = {Shard(-1)},
               .desired_input_layouts = {Replicate()},
               .use_local_output = true})},
         {"2", ColwiseParallel({.output_layouts = Replicate()})}});
    const auto x = uniform({2, 4}, 3);
    const auto y = model->forward(x);
    y.sum().backward();
    const auto truth = plain->forward(x);
    truth.sum().backward();
    expect_close(y, truth, "output");
    expect_same_gradients(*model, *plain, "sequential");
  });
}

// A module that writes to its input does not affect the siblings' shared input.
struct InPlaceImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) {
    return x.mul_(3);
  }
};
DTENSOR_MODULE(InPlace);

TEST(PrepareModuleTest, SiblingsSeeNoWritesOfEachOther) {
  on_two_ranks([](const DeviceMesh& mesh) {
    torch::nn::Sequential model{InPlace(), InPlace()};
    parallelize_module(
        *model,
        mesh,
        {{"*",
          PrepareModuleInput(
              {.input_layouts = {Shard(0)},
               .desired_input_layouts = {Replicate()}})}});
    const torch::NoGradGuard no_grad;
    const auto whole = uniform({4, 2}, 3);
    const at::Tensor x =
        distribute_tensor(whole, mesh, {Shard(0)}, std::nullopt);
    auto& first = *model->ptr(0)->as<Hooked<InPlaceImpl>>();
    auto& second = *model->ptr(1)->as<Hooked<InPlaceImpl>>();
    expect_close(first.forward(x), whole * 3, "first");
    expect_close(second.forward(x), whole * 3, "second");
  });
}

TEST(PrepareModuleTest, Errors) {
  on_two_ranks([](const DeviceMesh& mesh) {
    EXPECT_EQ(
        error_of([] {
          PrepareModuleInput(
              {.input_layouts = {Shard(0), Shard(1)},
               .desired_input_layouts = {Replicate()}});
        }),
        "[PrepareModuleInput] got 2 input_layouts and 1 "
        "desired_input_layouts. Pass one of each per tensor, nullopt to leave "
        "a tensor unchanged.");
    EXPECT_EQ(
        error_of([] {
          PrepareModuleOutput(
              {.output_layouts = {}, .desired_output_layouts = {Replicate()}});
        }),
        "[PrepareModuleOutput] got 0 output_layouts and 1 "
        "desired_output_layouts. Pass one of each per tensor, nullopt to "
        "leave a tensor unchanged.");
    EXPECT_EQ(
        error_of([] {
          PrepareModuleInput(
              {.input_layouts = {Shard(0), std::nullopt},
               .desired_input_layouts = {Replicate(), Replicate()}});
        }),
        "[PrepareModuleInput] input 1 has only one of its two layouts. Pass "
        "both, or nullopt for both.");
    const PrepareModuleInput one(
        {.input_layouts = {Shard(0)}, .desired_input_layouts = {Replicate()}});
    Unhooked unhooked;
    torch::nn::Sequential model(unhooked);
    EXPECT_EQ(
        error_of([&] {
          parallelize_module(*model, mesh, {{"0", one}});
        }),
        "[PrepareModuleInput] module \"0\" of type " + unhooked->name() +
            " has no hooks. Declare it with DTENSOR_MODULE instead of "
            "TORCH_MODULE.");
    Mix mix;
    parallelize_module(*mix, mesh, one);
    std::vector<int64_t> log;
    EXPECT_EQ(
        error_of([&] { mix->forward(at::ones({2}), 1, at::ones({2}), log); }),
        "[PrepareModuleInput] the root module has 2 tensor inputs, but got "
        "layouts for 1. Pass one layout per tensor, nullopt to leave a tensor "
        "unchanged.");
    EXPECT_EQ(
        error_of([&] { parallelize_module(*mix, mesh, one); }),
        "[parallelize_module] the root module has the style PrepareModuleInput "
        "already. Style a module once.");
  });
}

TEST(DistributeModuleTest, ReplicatesWhatPartitionLeaves) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    torch::nn::Sequential model(
        torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
    auto plain = filled(torch::nn::Linear(4, 4));
    filled(model);
    std::vector<std::string> names;
    distribute_module(
        *model,
        mesh,
        [&](const std::string& name,
            torch::nn::Module& module,
            const DeviceMesh& m) {
          names.push_back(name);
          if (auto* linear = module.as<torch::nn::Linear>()) {
            distribute_parameter(linear->weight, m, {Replicate(), Shard(0)});
          }
        });
    EXPECT_EQ(names, (std::vector<std::string>{"", "0", "1"}));
    auto& linear = *model->ptr(0)->as<torch::nn::Linear>();
    EXPECT_EQ(
        Placements(DTensor(linear.weight).placements()),
        (Placements{Replicate(), Shard(0)}));
    for (const auto& t : model->buffers()) {
      ASSERT_TRUE(is_dtensor(t));
      EXPECT_TRUE(DTensor(t).placements()[1].is_replicate());
    }
    const at::Tensor x = distribute_tensor(
        uniform({4, 4}, 3), mesh, {Shard(0), Replicate()}, std::nullopt);
    const auto y = linear.forward(x);
    plain(uniform({4, 4}, 3)).sum().backward();
    y.sum().backward();
    expect_close(linear.weight.grad(), plain->weight.grad(), "weight");
    expect_close(linear.bias.grad(), plain->bias.grad(), "bias");
    EXPECT_EQ(
        DTensor(linear.weight.grad()).placements(),
        DTensor(linear.weight).placements());
  });
}

TEST(DistributeParameterTest, ThatThrowsChangesNothing) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto linear = filled(torch::nn::Linear(4, 4));
    auto& weight = linear->weight;
    const auto expect_throws = [&](const Placement& placement) {
      const auto gradient = weight.grad();
      EXPECT_THROW(distribute_parameter(weight, mesh, {placement}), c10::Error);
      EXPECT_FALSE(is_dtensor(weight));
      EXPECT_TRUE(weight.grad().is_same(gradient));
    };
    weight.mutable_grad() = uniform({4, 4}, 7);
    expect_throws(Shard(2));
    weight.mutable_grad() = uniform({4, 4}, 7).to_sparse();
    expect_throws(Shard(0));
  });
}

TEST(DistributeModuleTest, InputAndOutputFunctionsNeedHooks) {
  on_two_ranks([](const DeviceMesh& mesh) {
    Twice twice;
    distribute_module(
        *twice,
        mesh,
        nullptr,
        [](const std::vector<at::Tensor*>& inputs, const DeviceMesh& m) {
          *inputs[0] = DTensor::from_local(*inputs[0], m, {Shard(0)});
        },
        [](const std::vector<at::Tensor*>& outputs, const DeviceMesh&) {
          *outputs[0] = DTensor(*outputs[0]).full_tensor();
        });
    EXPECT_TRUE(at::equal(twice(at::ones({2})), at::ones({4}) * 2));
    Unhooked unhooked;
    EXPECT_EQ(
        error_of([&] {
          distribute_module(
              *unhooked,
              mesh,
              nullptr,
              [](const std::vector<at::Tensor*>&, const DeviceMesh&) {});
        }),
        "[distribute_module] the root module of type " + unhooked->name() +
            " has no hooks. Declare it with DTENSOR_MODULE instead of "
            "TORCH_MODULE.");
  });
}

struct ManyImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, int64_t times = 2) {
    return x * times;
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return x + y;
  }
};
DTENSOR_MODULE(Many);

struct TemplateImpl : torch::nn::Module {
  template <class Factor>
  at::Tensor forward(at::Tensor x, Factor factor) {
    return x * factor;
  }
};
DTENSOR_MODULE(Template);

// Style with plain local rows as input and output.
PrepareModuleInputOutput rows() {
  return PrepareModuleInputOutput(
      {.input_layouts = {Shard(0)},
       .desired_input_layouts = {Replicate()},
       .output_layouts = {Replicate()},
       .desired_output_layouts = {Shard(0)}});
}

TEST(HooksTest, ForwardMayBeOverloaded) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto mine = part(uniform({4, 2}, 1), mesh, Shard(0));
    Many many;
    EXPECT_TRUE(at::equal(many->forward(mine), mine * 2));
    parallelize_module(*many, mesh, rows());
    expect_close(many->forward(mine), mine * 2, "default argument");
    expect_close(many->forward(mine, 3), mine * 3, "number");
    Many two;
    parallelize_module(
        *two,
        mesh,
        PrepareModuleInputOutput(
            {.input_layouts = {Shard(0), Shard(0)},
             .desired_input_layouts = {Replicate(), Replicate()},
             .output_layouts = {Replicate()},
             .desired_output_layouts = {Shard(0)}}));
    expect_close(two->forward(mine, mine), mine * 2, "two tensors");
  });
}

TEST(HooksTest, ForwardMayBeATemplate) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto mine = part(uniform({4, 2}, 1), mesh, Shard(0));
    Template module;
    EXPECT_TRUE(at::equal(module->forward(mine, 2.5), mine * 2.5));
    parallelize_module(*module, mesh, rows());
    expect_close(module->forward(mine, 2.5), mine * 2.5, "template");
  });
}

TEST(HooksTest, ALayerNormWithoutAffine) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto whole = uniform({2, 5, 6}, 1);
    const auto norm = [] {
      return torch::nn::LayerNormOptions({6}).elementwise_affine(false);
    };
    const auto truth = torch::nn::LayerNorm(norm())->forward(whole);
    hooked::LayerNorm mine(norm());
    parallelize_module(*mine, mesh, SequenceParallel());
    const auto y = mine->forward(distribute_tensor(whole, mesh, {Replicate()}));
    EXPECT_EQ(layout_of(y), Shard(1));
    expect_close(y, truth, "norm");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
