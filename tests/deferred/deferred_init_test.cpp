// SPDX-License-Identifier: BSD-3-Clause
// Materialized models have the values that the program computes without a
// DeferredInit scope, on any number of ranks.
#include <dtensor/deferred/deferred_init.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/attention_parallel.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/parallel/state_dict.h>
#include <dtensor/random/random.h>
#include <tests/parallel/modules.h>

#include <functional>

#include "tests/comm/expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;

template <class Error, class Fn>
void expect_error(const Fn& fn, const std::string& text) {
  EXPECT_EQ(test::error_of<Error>(fn), text);
}

template <class Make>
auto deferred(const Make& make) {
  const DeferredInit scope;
  return make();
}

void expect_equal(
    const torch::nn::Module& mine,
    const torch::nn::Module& truth,
    const std::string& what) {
  const auto a = get_model_state_dict(mine);
  const auto b = get_model_state_dict(truth);
  ASSERT_EQ(a.keys(), b.keys()) << what;
  for (const auto& item : a) {
    const auto& expected = b[item.key()];
    EXPECT_EQ(item.value().dtype(), expected.dtype()) << what << item.key();
    EXPECT_EQ(item.value().strides(), expected.strides()) << what << item.key();
    EXPECT_TRUE(at::equal(item.value(), expected)) << what << item.key();
  }
}

// Compares the values, and the next random numbers.
void expect_as_without(
    const std::string& what,
    const std::function<std::shared_ptr<torch::nn::Module>()>& make) {
  torch::manual_seed(7);
  const auto truth = make();
  const auto next = torch::rand({3});
  torch::manual_seed(7);
  const auto mine = deferred(make);
  for (const auto& p : mine->parameters()) {
    EXPECT_TRUE(is_deferred(p)) << what;
  }
  materialize(*mine);
  EXPECT_TRUE(at::equal(torch::rand({3}), next)) << what;
  expect_equal(*mine, *truth, what + " ");
}

#define EXPECT_AS_WITHOUT(...)                                      \
  expect_as_without(#__VA_ARGS__, [] {                              \
    return std::shared_ptr<torch::nn::Module>((__VA_ARGS__).ptr()); \
  })

TEST(DeferredInit, ModulesOfLibTorchGetTheirOwnValues) {
  namespace nn = torch::nn;
  EXPECT_AS_WITHOUT(nn::Linear(5, 7));
  EXPECT_AS_WITHOUT(nn::Linear(nn::LinearOptions(5, 7).bias(false)));
  EXPECT_AS_WITHOUT(nn::Bilinear(3, 4, 5));
  EXPECT_AS_WITHOUT(nn::Embedding(6, 4));
  EXPECT_AS_WITHOUT(nn::Embedding(nn::EmbeddingOptions(6, 4).padding_idx(2)));
  EXPECT_AS_WITHOUT(nn::EmbeddingBag(6, 4));
  EXPECT_AS_WITHOUT(nn::LayerNorm(nn::LayerNormOptions({6})));
  EXPECT_AS_WITHOUT(nn::GroupNorm(2, 6));
  EXPECT_AS_WITHOUT(nn::BatchNorm2d(6));
  EXPECT_AS_WITHOUT(nn::InstanceNorm1d(
      nn::InstanceNorm1dOptions(4).affine(true).track_running_stats(true)));
  EXPECT_AS_WITHOUT(nn::Conv2d(3, 4, 3));
  EXPECT_AS_WITHOUT(nn::ConvTranspose1d(3, 4, 3));
  EXPECT_AS_WITHOUT(nn::PReLU());
  EXPECT_AS_WITHOUT(nn::LSTM(nn::LSTMOptions(4, 5).num_layers(2)));
  EXPECT_AS_WITHOUT(nn::GRU(nn::GRUOptions(4, 5).bidirectional(true)));
  EXPECT_AS_WITHOUT(nn::LSTMCell(4, 5));
  EXPECT_AS_WITHOUT(nn::MultiheadAttention(8, 2));
  EXPECT_AS_WITHOUT(nn::MultiheadAttention(
      nn::MultiheadAttentionOptions(8, 2).kdim(4).add_bias_kv(true)));
  EXPECT_AS_WITHOUT(
      nn::Transformer(nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(12)));
  EXPECT_AS_WITHOUT(nn::AdaptiveLogSoftmaxWithLoss(
      nn::AdaptiveLogSoftmaxWithLossOptions(64, 20, {4, 10})));
}

TEST(DeferredInit, InitialisersOfLibTorchGiveTheirOwnValues) {
  namespace init = torch::nn::init;
  using Init = std::function<void(at::Tensor)>;
  const std::vector<std::pair<const char*, Init>> all = {
      {"constant", [](at::Tensor t) { init::constant_(t, 3); }},
      {"eye", [](at::Tensor t) { init::eye_(t); }},
      {"kaiming_normal", [](at::Tensor t) { init::kaiming_normal_(t); }},
      {"kaiming_uniform", [](at::Tensor t) { init::kaiming_uniform_(t); }},
      {"normal", [](at::Tensor t) { init::normal_(t, 1, 2); }},
      {"ones", [](at::Tensor t) { init::ones_(t); }},
      {"orthogonal", [](at::Tensor t) { init::orthogonal_(t); }},
      {"sparse", [](at::Tensor t) { init::sparse_(t, 0.5); }},
      {"uniform", [](at::Tensor t) { init::uniform_(t, -1, 1); }},
      {"xavier_normal", [](at::Tensor t) { init::xavier_normal_(t); }},
      {"xavier_uniform", [](at::Tensor t) { init::xavier_uniform_(t); }},
      {"zeros", [](at::Tensor t) { init::zeros_(t); }}};
  for (const auto& [name, initialise] : all) {
    const Init& function = initialise;
    expect_as_without(name, [&] {
      torch::nn::Linear linear(6, 8);
      function(linear->weight);
      return linear.ptr();
    });
  }
}

// Typical computations of a model's constructor.
struct Computes : torch::nn::Module {
  Computes() {
    const auto steps = torch::arange(0, 6, 2, torch::kFloat) / 6;
    const auto inverse = torch::pow(10000, -steps);
    const auto angles = torch::outer(torch::arange(5), inverse);
    register_buffer("cos", angles.cos());
    register_buffer("mask", torch::ones({5, 5}).tril().to(torch::kBool));
    register_buffer("mean", torch::tensor({0.5, 0.25}));
    register_buffer("zero", torch::tensor({0, 0}));
    register_buffer("nested", torch::tensor({{1.0, 2.0}, {3.0, 4.0}}));
    register_buffer("scalar", torch::tensor(3.5));
    register_parameter("scaled", torch::randn({4, 6}) * 0.02);
    register_parameter("half", torch::rand({4}).to(torch::kHalf));
    auto table = torch::empty({4, 2});
    auto access = table.accessor<float, 2>();
    for (int64_t i = 0; i < 4; ++i) {
      access[i][0] = 7;
      access[i][1] = static_cast<float>(i);
    }
    register_buffer("table", table);
    auto cut = torch::zeros({6, 4});
    cut.slice(0, 2, 4).fill_(2);
    cut.index_put_({torch::indexing::Slice(), 3}, 5);
    cut[5].copy_(torch::rand({4}));
    cut.t().add_(1);
    cut.relu_(); // no meta kernels in LibTorch
    cut.index_put_({torch::rand({6, 4}) > 0.5}, 7);
    register_parameter("cut", cut);
    const auto rates = torch::linspace(0, 0.5, 3);
    for (int64_t i = 0; i < 3; ++i) { // values determine shapes
      const auto size = 1 + std::lround(rates[i].item<double>() * 8);
      register_parameter("rate" + std::to_string(i), torch::rand({size}));
    }
    register_buffer("order", torch::randperm(5));
    register_buffer(
        "some",
        torch::arange(6).masked_select(torch::arange(6).remainder(2).eq(0)));
    auto turned = torch::randn({3, 5});
    turned.transpose_(0, 1);
    register_parameter("turned", turned);
  }
};

TEST(DeferredInit, ConstructorsComputeTheSameValues) {
  expect_as_without("Computes", [] { return std::make_shared<Computes>(); });
}

TEST(DeferredInit, ConvertedModelsStayConverted) {
  expect_as_without("to bfloat16", [] {
    torch::nn::Linear linear(4, 6);
    linear->to(torch::kBFloat16);
    return linear.ptr();
  });
  torch::manual_seed(1);
  torch::nn::Linear truth(4, 6);
  truth->to(torch::kHalf);
  torch::manual_seed(1);
  auto mine = deferred([] { return torch::nn::Linear(4, 6); });
  {
    const DeferredInit again;
    mine->to(torch::kHalf);
  }
  materialize(*mine);
  expect_equal(*mine, *truth, "");
}

TEST(DeferredInit, NothingIsAllocated) {
  const auto model = deferred([] { // 4 TB
    return torch::nn::Linear(1 << 20, 1 << 20);
  });
  EXPECT_TRUE(model->weight.is_meta());
  EXPECT_TRUE(is_deferred(model->weight));
  EXPECT_TRUE(model->weight.requires_grad());
}

TEST(DeferredInit, EarlierTensorsAreReal) {
  const auto before = torch::tensor({1.0F, 2.0F});
  torch::Tensor real;
  torch::Tensor late;
  {
    const DeferredInit scope;
    real = before * 2;
    late = torch::ones({2}) + before;
    EXPECT_FALSE(is_deferred(real));
    EXPECT_TRUE(is_deferred(late));
  }
  EXPECT_FALSE(is_deferred(torch::ones({2})));
  materialize({late, real});
  EXPECT_TRUE(at::equal(late, torch::tensor({2.0F, 3.0F})));
  EXPECT_TRUE(at::equal(real, torch::tensor({2.0F, 4.0F})));
}

TEST(DeferredInit, ErrorsAreThoseOfTheOperators) {
  const auto add = [] { return torch::ones({2}) + torch::ones({3}); };
  const auto error = test::error_of<c10::Error>(add);
  expect_error<c10::Error>([&] { deferred(add); }, error);
}

TEST(DeferredInit, EarlierTensorsMayBeWritten) {
  const auto before = torch::tensor({1.0F, 2.0F});
  const DeferredInit scope;
  before.add_(torch::ones({2}));
  EXPECT_FALSE(is_deferred(before));
  // Needs the values of both.
  EXPECT_TRUE(at::equal(torch::full({2}, 2) + torch::arange(2), before));
}

TEST(DeferredInit, ADrawIsTheSameForAllItsUses) {
  torch::manual_seed(3);
  torch::Tensor a;
  torch::Tensor b;
  {
    const DeferredInit scope;
    const auto noise = torch::randn({6});
    a = noise + 1;
    b = noise + 2;
  }
  materialize({a});
  torch::rand({5});
  materialize({b});
  EXPECT_TRUE(at::allclose(a + 1, b));
}

TEST(DeferredInit, HeldTensorsAreReleased) {
  const auto outside = torch::ones({2});
  const auto count = outside.use_count();
  auto made = deferred([&] { return torch::zeros({2}) + outside; });
  EXPECT_GT(outside.use_count(), count);
  materialize({made});
  EXPECT_EQ(outside.use_count(), count);
  made = deferred([&] { return torch::zeros({2}) + outside; });
  made = torch::Tensor();
  EXPECT_EQ(outside.use_count(), count);
}

TEST(DeferredInit, OptimizersKeepTheirParameters) {
  torch::manual_seed(2);
  torch::nn::Linear truth(3, 2);
  torch::manual_seed(2);
  auto mine = deferred([] { return torch::nn::Linear(3, 2); });
  torch::optim::SGD ours(mine->parameters(), 0.1);
  torch::optim::SGD theirs(truth->parameters(), 0.1);
  const auto meta = mine(torch::ones({4, 3}, torch::kMeta));
  EXPECT_EQ(meta.sizes(), at::IntArrayRef({4, 2}));
  meta.sum().backward();
  materialize(*mine);
  EXPECT_FALSE(mine->weight.grad().defined());
  for (auto* model : {&mine, &truth}) {
    (*model)(torch::ones({4, 3})).square().sum().backward();
  }
  ours.step();
  theirs.step();
  expect_equal(*mine, *truth, "");
}

struct Net : torch::nn::Module {
  Net(int64_t vocabulary, int64_t width) {
    const torch::nn::EmbeddingOptions options(vocabulary, width);
    embed = register_module(
        "embed",
        torch::nn::Embedding(
            torch::nn::EmbeddingOptions(options).padding_idx(1)));
    up = register_module("up", torch::nn::Linear(width, 3 * width));
    down = register_module("down", torch::nn::Linear(3 * width, width));
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    torch::nn::init::orthogonal_(down->weight);
    scale = register_parameter("scale", torch::randn({width}) * 0.5);
    table = register_buffer("table", torch::arange(width).to(torch::kDouble));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return norm(down(up(embed(ids)).tanh())) * scale + table;
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::Tensor scale;
  torch::Tensor table;
};

std::shared_ptr<Net> deferred_net() {
  return deferred([] { return std::make_shared<Net>(9, 5); });
}

ParallelizePlan net_plan() {
  return {
      {"embed", RowwiseParallel({.input_layouts = Replicate()})},
      {"up", ColwiseParallel()},
      {"down", RowwiseParallel()}};
}

TEST(Materialize, GivesTheSameValuesOnAnyNumberOfRanks) {
  std::map<std::string, at::Tensor> values; // on one rank
  for (const int64_t ranks : {1, 2, 3, 4, 7}) {
    run_ranks(ranks, [&] {
      manual_seed(11);
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      const auto net = deferred_net();
      parallelize_module(*net, mesh, net_plan());
      EXPECT_TRUE(is_deferred(net->up->weight));
      materialize(*net);
      EXPECT_EQ(layout_of(net->embed->weight), Placement(Shard(0)));
      EXPECT_EQ(layout_of(net->up->weight), Placement(Shard(0)));
      EXPECT_EQ(layout_of(net->down->weight), Placement(Shard(1)));
      for (const auto& item : net->named_parameters()) {
        EXPECT_FALSE(item.value().is_meta()) << item.key();
        EXPECT_TRUE(item.value().requires_grad()) << item.key();
        const auto whole = full(item.value());
        if (ranks == 1) {
          values[item.key()] = whole.clone();
        }
        // Computed values, such as those of orthogonal_, are bitwise equal.
        EXPECT_TRUE(at::equal(whole, values.at(item.key())))
            << item.key() << " on " << ranks;
      }
      EXPECT_TRUE(at::equal(full(net->embed->weight)[1], at::zeros({5})));
      const auto rows = full(net->down->weight);
      EXPECT_TRUE(at::allclose(rows.mm(rows.t()), at::eye(5), 1e-4, 1e-5));
    });
  }
}

// Each tensor draws its own numbers once. Values that a constructor reads in
// the scope, and tensors materialized earlier, do not change them.
TEST(Materialize, DrawsOnceForEachTensor) {
  std::map<std::string, at::Tensor> values;
  for (const int64_t ranks : {1, 2, 3}) {
    for (const bool disturbed : {false, true}) {
      run_ranks(ranks, [&] {
        manual_seed(11);
        const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
        torch::nn::Linear a{nullptr};
        torch::nn::Linear b{nullptr};
        torch::Tensor plain;
        {
          const DeferredInit scope;
          plain = torch::rand({4});
          a = torch::nn::Linear(6, 6);
          if (disturbed) {
            plain.sum().item<double>();
            a->weight.sum().item<double>();
          }
          b = torch::nn::Linear(6, 6);
        }
        distribute_parameter(a->weight, mesh, {Shard(0)});
        distribute_parameter(b->weight, mesh, {Shard(1)});
        if (disturbed) {
          materialize({plain});
        }
        materialize({a->weight, b->weight});
        EXPECT_FALSE(at::equal(full(a->weight), full(b->weight)));
        if (ranks == 1 && !disturbed) {
          values = {
              {"a", full(a->weight).clone()}, {"b", full(b->weight).clone()}};
        }
        EXPECT_TRUE(at::equal(full(a->weight), values.at("a")));
        EXPECT_TRUE(at::equal(full(b->weight), values.at("b")));
      });
    }
  }
}

TEST(Materialize, FillsOnlyLocalShards) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
    auto t = deferred([] { return torch::full({8, 2}, 3.5); });
    const auto whole = torch::full({8, 2}, 3.5);
    auto d = distribute_tensor(t, mesh, {Shard(0)}, std::nullopt);
    materialize({d});
    EXPECT_TRUE(at::equal(full(d), whole));
    EXPECT_EQ(to_local(d).storage().nbytes(), 2 * 2 * 4);
  });
}

TEST(Materialize, StylesStayInEffect) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      manual_seed(5);
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      const auto net = deferred_net();
      parallelize_module(*net, mesh, net_plan());
      const auto ids = torch::arange(8).reshape({2, 4});
      // LibTorch's layer_norm does not support plain meta tensors, so the
      // modules are called one by one.
      const auto hidden = net->up(net->embed(ids.to(at::kMeta)));
      EXPECT_EQ(hidden.size(2), DTensor(net->up->weight).to_local().size(0));
      EXPECT_EQ(net->down(hidden.tanh()).sizes(), at::IntArrayRef({2, 4, 5}));
      materialize(*net);
      auto plain = std::make_shared<Net>(9, 5);
      set_model_state_dict(
          *plain, get_model_state_dict(*net, {.full_state_dict = true}));
      const auto mine = net->forward(ids);
      const auto theirs = plain->forward(ids);
      EXPECT_TRUE(at::allclose(full(mine), theirs, 1e-4, 1e-5));
      mine.square().sum().backward();
      theirs.square().sum().backward();
      for (const auto& item : net->named_parameters()) {
        const auto truth = plain->named_parameters()[item.key()];
        EXPECT_TRUE(
            at::allclose(full(item.value().grad()), truth.grad(), 1e-3, 1e-4))
            << item.key();
      }
    });
  }
}

TEST(Materialize, AllocatesOnlyTheLocalShard) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto linear = deferred([] { return torch::nn::Linear(8, 12); });
    parallelize_module(*linear, mesh["tp"], ColwiseParallel());
    materialize(*linear);
    const auto local = DTensor(linear->weight).to_local();
    EXPECT_EQ(local.sizes(), at::IntArrayRef({6, 8}));
    EXPECT_EQ(local.storage().nbytes(), 6 * 8 * 4);
  });
}

// New tensors that no factory of DTensors makes, and tensors from outside.
TEST(Materialize, DistributesComputedTensors) {
  const auto outside = torch::arange(8, torch::kFloat).view({4, 2});
  const std::vector<std::function<at::Tensor()>> makers = {
      [] { return torch::arange(6); },
      [] { return torch::linspace(0, 1, 5); },
      [] { return torch::eye(3); },
      [] {
        return torch::tensor({0.5, 0.25, 0.75});
      },
      [&] {
        return torch::ones({4, 2}) + outside;
      }};
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const auto& make : makers) {
        auto d =
            distribute_tensor(deferred(make), mesh, {Shard(0)}, std::nullopt);
        materialize({d});
        EXPECT_EQ(layout_of(d), Placement(Shard(0)));
        EXPECT_TRUE(at::equal(full(d), make()));
      }
    });
  }
}

// Operators without a rule for sharded tensors compute with replicated ones.
// The draws before them are the same on any number of ranks.
TEST(Materialize, StartsAgainWithReplicatedTensors) {
  at::Tensor truth; // on one rank
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      manual_seed(11);
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      const auto made = deferred([] {
        auto t = torch::rand({4, 4});
        t.put_(torch::tensor({1, 6}), torch::tensor({2.0F, 3.0F}));
        return t * 2;
      });
      auto d = distribute_tensor(made, mesh, {Shard(0)}, std::nullopt);
      materialize({d});
      EXPECT_EQ(layout_of(d), Placement(Shard(0)));
      const auto whole = full(d);
      if (ranks == 1) {
        truth = whole.clone();
        EXPECT_EQ(truth[0][1].item<float>(), 4);
        EXPECT_EQ(truth[1][2].item<float>(), 6);
      }
      EXPECT_TRUE(at::equal(whole, truth));
    });
  }
}

TEST(Materialize, OneDrawOnTwoMeshes) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    at::Tensor a;
    at::Tensor b;
    at::Tensor c;
    {
      const DeferredInit scope;
      const auto base = torch::rand({6, 2});
      a = base + 1;
      b = base + 2;
      c = base + 3;
    }
    a = distribute_tensor(a, mesh["dp"], {Shard(0)}, std::nullopt);
    b = distribute_tensor(b, mesh["tp"], {Shard(1)}, std::nullopt);
    materialize({a, b, c});
    EXPECT_EQ(layout_of(a), Placement(Shard(0)));
    EXPECT_EQ(layout_of(b), Placement(Shard(1)));
    EXPECT_TRUE(at::allclose(full(a) + 1, full(b)));
    EXPECT_TRUE(at::allclose(full(a) + 2, c));
  });
}

TEST(Materialize, OnTwoMeshDimensionsAndRanksOutside) {
  std::map<std::string, at::Tensor> values;
  for (const int64_t ranks : {4, 6}) {
    run_ranks(ranks, [&] {
      manual_seed(5);
      const auto mesh =
          make_device_mesh(at::kCPU, at::arange(4).reshape({2, 2}), {"a", "b"});
      auto linear = deferred([] { return torch::nn::Linear(7, 5); });
      distribute_parameter(linear->weight, mesh, {Shard(0), Shard(1)});
      distribute_parameter(linear->bias, mesh, {Replicate(), Shard(0)});
      materialize(*linear);
      EXPECT_FALSE(linear->weight.is_meta());
      if (mesh.contains_this_rank()) {
        const auto whole = full(linear->weight);
        EXPECT_GT(whole.abs().max().item<double>(), 0);
      }
      EXPECT_EQ(
          full(dtensor::rand({3}, init_device_mesh(at::kCPU, {ranks}))).numel(),
          3);
    });
  }
}

TEST(Materialize, FillsWhatStateDictionariesLeave) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto truth = std::make_shared<Net>(9, 5);
    auto state = get_model_state_dict(*truth);
    StateDict some;
    for (const auto& item : state) {
      if (item.key() != "table" && item.key() != "norm.weight") {
        some.insert(item.key(), item.value());
      }
    }
    const auto net = deferred_net();
    parallelize_module(*net, mesh, net_plan());
    set_model_state_dict(*net, some, {.strict = false});
    EXPECT_TRUE(is_deferred(net->table));
    EXPECT_FALSE(is_deferred(net->up->weight));
    materialize(*net);
    EXPECT_TRUE(at::equal(net->table, truth->table));
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(at::equal(full(item.value()), state[item.key()]))
          << item.key();
    }
  });
}

TEST(Materialize, NamesMetaTensorsFromOutsideAScope) {
  torch::nn::Linear linear(2, 2);
  linear->register_buffer("a", torch::ones({2}, at::kMeta));
  linear->register_parameter("b", torch::ones({2}, at::kMeta));
  expect_error<c10::ValueError>(
      [&] { materialize(*linear); },
      "[materialize] cannot materialize meta tensors that were not created in "
      "a DeferredInit scope: b, a. Create them in a scope, or fill them with "
      "load_weights() or set_model_state_dict().");
}

TEST(Materialize, RefusesInsideAScope) {
  expect_error<c10::Error>(
      [] {
        const DeferredInit scope;
        torch::nn::Linear linear(2, 2);
        materialize(*linear);
      },
      "[materialize] a DeferredInit scope is open. Let it end first.");
}

TEST(Materialize, RefusesChangedOutsideTensors) {
  const auto outside = torch::ones({2});
  const auto made = deferred([&] { return torch::zeros({2}) + outside; });
  outside.add_(1);
  expect_error<c10::Error>(
      [&] { materialize({made}); },
      "[materialize] aten::add.Tensor, which was deferred by a DeferredInit "
      "scope, uses a tensor from outside the scope that has been written to "
      "since. Pass the operator a clone() of that tensor.");
}

TEST(DeferredInit, MemoryInUseHasNoPointer) {
  const DeferredInit scope;
  const auto t = torch::empty({4});
  t.data_ptr<float>()[0] = 1;
  t.fill_(2);
  EXPECT_THROW(t.data_ptr<float>(), c10::Error);
  EXPECT_THROW(torch::zeros({4}).data_ptr<float>(), c10::Error);
}

} // namespace TEST_SOURCE
} // namespace dtensor
