// SPDX-License-Identifier: BSD-3-Clause
// AttentionParallel compared with the plain module. Transformers of torch::nn
// with a plan, compared with plain ones.
#include <dtensor/ops/implicit_replication.h>
#include <dtensor/parallel/attention_parallel.h>
#include <tests/parallel/comm_counts.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
namespace nn = torch::nn;

constexpr int64_t kWidth = 24;
constexpr int64_t kHeads = 12;

struct Case {
  std::string name;
  nn::MultiheadAttentionOptions options{kWidth, kHeads};
  /// Index of the tensor passed as query, key and value; equal indices share
  /// one tensor.
  std::array<size_t, 3> inputs = {0, 0, 0};
  bool need_weights = true;
  bool average = true;
  bool masks = false;
  /// True if masks and tensors that the module creates are plain.
  bool plain_beside = false;
  std::string forward = "1 all_reduce";
  std::string backward = "1 all_reduce";
};

nn::MultiheadAttentionOptions options() {
  return {kWidth, kHeads};
}

std::vector<Case> cases() {
  return {
      {.name = "self-attention"},
      {.name = "of a decoder", .inputs = {0, 1, 1}, .backward = "2 all_reduce"},
      {.name = "three inputs", .inputs = {0, 1, 2}, .backward = "3 all_reduce"},
      {.name = "without bias", .options = options().bias(false)},
      {.name = "without weights", .need_weights = false},
      {.name = "weights of each head", .average = false},
      {.name = "biases for keys and values",
       .options = options().add_bias_kv(true)},
      {.name = "masks", .masks = true},
      {.name = "plain masks", .masks = true, .plain_beside = true},
      {.name = "zeros to attend to",
       .options = options().add_zero_attn(true),
       .masks = true,
       .plain_beside = true},
      {.name = "other widths",
       .options = options().kdim(10).vdim(10),
       .inputs = {0, 1, 2},
       .backward = "3 all_reduce"}};
}

struct Inputs {
  std::vector<at::Tensor> tensors;
  at::Tensor padding;
  at::Tensor mask;
};

// Returns inputs with four query positions, five key positions and three
// samples.
Inputs inputs_of(const Case& c) {
  const auto width = [&](size_t i) {
    const auto of_key = c.options.kdim() > 0 ? c.options.kdim() : kWidth;
    const auto of_value = c.options.vdim() > 0 ? c.options.vdim() : kWidth;
    return i == 0 ? kWidth : i == 1 ? of_key : of_value;
  };
  Inputs inputs;
  for (size_t i = 0; i < 3; ++i) {
    inputs.tensors.push_back(
        uniform({i == 0 ? 4 : 5, 3, width(i)}, 50 + i).requires_grad_());
  }
  if (c.masks) {
    const int64_t keys = c.inputs[1] == 0 ? 4 : 5;
    inputs.mask = uniform({4, keys}, 60);
    inputs.padding = at::zeros({3, keys}, at::kBool);
    inputs.padding[1][2] = true;
  }
  return inputs;
}

std::tuple<at::Tensor, at::Tensor>
call(nn::MultiheadAttention& module, const Inputs& in, const Case& c) {
  return module->forward(
      in.tensors[c.inputs[0]],
      in.tensors[c.inputs[1]],
      in.tensors[c.inputs[2]],
      in.padding,
      c.need_weights,
      in.mask,
      c.average);
}

void backward(const at::Tensor& y, const at::Tensor& weights) {
  auto loss = y.square().sum();
  if (weights.defined()) {
    const auto term = weights.pow(3).sum();
    loss = loss + (is_dtensor(term) ? DTensor(term).full_tensor() : term);
  }
  loss.backward();
}

void expect_like_plain(const Case& c, const DeviceMesh& mesh) {
  const auto what = c10::str(c.name, " on ", mesh.size());
  auto plain = filled(nn::MultiheadAttention(c.options));
  const auto truth_inputs = inputs_of(c);
  const auto [truth, truth_weights] = call(plain, truth_inputs, c);
  backward(truth, truth_weights);

  auto module = filled(nn::MultiheadAttention(c.options));
  parallelize_module(*module, mesh, AttentionParallel());
  auto inputs = inputs_of(c);
  for (auto* mask : {&inputs.mask, &inputs.padding}) {
    if (mask->defined() && !c.plain_beside) {
      *mask = distribute_tensor(*mask, mesh, {Replicate()}, std::nullopt);
    }
  }
  std::optional<ImplicitReplication> scope;
  if (c.plain_beside) {
    scope.emplace();
  }
  CommDebugMode comm;
  const auto [y, weights] = call(module, inputs, c);
  scope.reset();
  EXPECT_EQ(counts(comm, false), mesh.size() > 1 ? c.forward : "") << what;
  EXPECT_FALSE(is_dtensor(y)) << what;
  expect_close(y, truth, what);
  expect_close(weights, truth_weights, what + ": weights");
  if (!c.need_weights) {
    comm.reset();
    backward(y, weights);
    EXPECT_EQ(counts(comm, true), mesh.size() > 1 ? c.backward : "") << what;
  } else {
    backward(y, weights);
  }
  expect_same_gradients(*module, *plain, what, 1e-11);
  for (size_t i = 0; i < 3; ++i) {
    expect_close(
        inputs.tensors[i].grad(),
        truth_inputs.tensors[i].grad(),
        c10::str(what, ": gradient of input ", i),
        1e-11);
  }
}

TEST(AttentionParallel, IsLikeThePlainModule) {
  for (const int64_t ranks : {1, 2, 3, 4, 12}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const auto& c : cases()) {
        expect_like_plain(c, mesh);
      }
    });
  }
}

// On 5 ranks, 12 heads are 3 per rank and none for the last rank. On 7 ranks,
// they are 2 per rank and none for the last rank.
TEST(AttentionParallel, TakesHeadsThatDoNotDivide) {
  for (const int64_t ranks : {5, 7}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const auto& c : cases()) {
        expect_like_plain(c, mesh);
      }
    });
  }
}

// Communication is independent of need_weights and of other options of the
// module.
TEST(AttentionParallel, CostsOneAllReduceEachWayAndInput) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (auto c : cases()) {
      c.need_weights = false;
      expect_like_plain(c, mesh);
    }
  });
}

TEST(AttentionParallel, ShardsHeads) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto module = filled(nn::MultiheadAttention(4, 2));
    const auto whole = module->in_proj_weight.detach().clone();
    parallelize_module(*module, mesh, AttentionParallel());
    EXPECT_EQ(layout_of(module->in_proj_weight), StridedShard(0, 3));
    EXPECT_EQ(layout_of(module->in_proj_bias), StridedShard(0, 3));
    EXPECT_EQ(layout_of(module->out_proj->weight), Shard(1));
    const auto rank = mesh.get_local_rank();
    const auto mine = at::cat(
        {whole.narrow(0, 2 * rank, 2),
         whole.narrow(0, 4 + 2 * rank, 2),
         whole.narrow(0, 8 + 2 * rank, 2)});
    EXPECT_TRUE(at::equal(DTensor(module->in_proj_weight).to_local(), mine));
  });
}

TEST(AttentionParallel, ShardsBetweenHeads) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto module = filled(nn::MultiheadAttention(12, 3));
    const auto whole = module->in_proj_weight.detach().clone();
    parallelize_module(*module, mesh, AttentionParallel());
    EXPECT_EQ(layout_of(module->in_proj_weight), StridedShard(0, 3, 4));
    EXPECT_EQ(layout_of(module->out_proj->weight), Shard(1, 4));
    const auto rank = mesh.get_local_rank();
    const auto rows = [&](int64_t of) {
      return whole.narrow(0, 12 * of + 8 * rank, rank == 0 ? 8 : 4);
    };
    EXPECT_TRUE(at::equal(
        DTensor(module->in_proj_weight).to_local(),
        at::cat({rows(0), rows(1), rows(2)})));
  });
}

TEST(AttentionParallel, TakesAndGivesDTensorsInOtherLayouts) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto plain = filled(nn::MultiheadAttention(kWidth, kHeads));
    const auto x = uniform({4, 3, kWidth}, 7);
    const auto truth = std::get<0>(plain->forward(x, x, x));
    auto module = filled(nn::MultiheadAttention(kWidth, kHeads));
    parallelize_module(
        *module,
        mesh,
        AttentionParallel(
            {.output_layouts = Shard(0), .use_local_output = false}));
    const auto mine = distribute_tensor(x, mesh, {Shard(0)});
    const auto y = std::get<0>(module->forward(mine, mine, mine));
    ASSERT_TRUE(is_dtensor(y));
    EXPECT_EQ(layout_of(y), Shard(0));
    expect_close(y, truth, "S(0)");
  });
}

TEST(AttentionParallel, RejectsUnsupportedModules) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    nn::Linear linear(2, 2);
    EXPECT_EQ(
        error_of(
            [&] { parallelize_module(*linear, mesh, AttentionParallel()); }),
        "[AttentionParallel] cannot style the root module of type "
        "torch::nn::LinearImpl: only torch::nn::MultiheadAttention is "
        "supported. Give the style to such a module.");
  });
}

ParallelizePlan layer_plan(const std::string& layers, bool decoder) {
  ParallelizePlan plan = {
      {layers + "self_attn", AttentionParallel()},
      {layers + "linear1", ColwiseParallel({.use_local_output = false})},
      {layers + "linear2", RowwiseParallel()}};
  if (decoder) {
    plan.emplace_back(layers + "multihead_attn", AttentionParallel());
  }
  return plan;
}

// Compares forward and backward with the plain model. Each takes `all_reduces`
// all-reduces.
template <class Make, class Call>
void expect_model_like_plain(
    const Make& make,
    const Call& forward,
    const ParallelizePlan& plan,
    int64_t all_reduces,
    const std::string& what) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      const auto text = c10::str(what, " on ", ranks);
      auto plain = filled(make());
      const auto truth = forward(plain);
      truth.square().sum().backward();
      auto model = filled(make());
      parallelize_module(*model, mesh, plan);
      const CommDebugMode comm;
      const auto y = forward(model);
      if (ranks > 1) {
        EXPECT_EQ(counts(comm, false), c10::str(all_reduces, " all_reduce"))
            << text;
      }
      expect_close(y, truth, text, 1e-10);
      y.square().sum().backward();
      expect_same_gradients(*model, *plain, text, 1e-9);
    });
  }
}

TEST(Transformers, EncoderLayer) {
  const auto make = [] {
    return nn::TransformerEncoderLayer(
        nn::TransformerEncoderLayerOptions(kWidth, kHeads)
            .dim_feedforward(32)
            .dropout(0));
  };
  const auto x = uniform({4, 3, kWidth}, 3);
  expect_model_like_plain(
      make,
      [&](auto& model) { return model->forward(x); },
      layer_plan("", false),
      2,
      "encoder layer");
}

TEST(Transformers, Encoder) {
  const auto make = [] {
    return nn::TransformerEncoder(nn::TransformerEncoderOptions(
        nn::TransformerEncoderLayer(
            nn::TransformerEncoderLayerOptions(kWidth, kHeads)
                .dim_feedforward(32)
                .dropout(0)
                .activation(torch::kGELU)),
        2));
  };
  const auto x = uniform({4, 3, kWidth}, 3);
  expect_model_like_plain(
      make,
      [&](auto& model) { return model->forward(x); },
      layer_plan("layers.*.", false),
      4,
      "encoder");
}

TEST(Transformers, DecoderLayer) {
  const auto make = [] {
    return nn::TransformerDecoderLayer(
        nn::TransformerDecoderLayerOptions(kWidth, kHeads)
            .dim_feedforward(32)
            .dropout(0));
  };
  const auto x = uniform({4, 3, kWidth}, 3);
  const auto memory = uniform({5, 3, kWidth}, 4);
  expect_model_like_plain(
      make,
      [&](auto& model) { return model->forward(x, memory); },
      layer_plan("", true),
      3,
      "decoder layer");
}

TEST(Transformers, Whole) {
  const auto make = [] {
    return nn::Transformer(nn::TransformerOptions(kWidth, kHeads, 2, 2)
                               .dim_feedforward(32)
                               .dropout(0));
  };
  const auto x = uniform({5, 3, kWidth}, 3);
  const auto target = uniform({4, 3, kWidth}, 4);
  auto plan = layer_plan("encoder.layers.*.", false);
  for (auto& entry : layer_plan("decoder.layers.*.", true)) {
    plan.push_back(entry);
  }
  expect_model_like_plain(
      make,
      [&](auto& model) { return model->forward(x, target); },
      plan,
      10,
      "transformer");
}

} // namespace TEST_SOURCE
} // namespace dtensor
