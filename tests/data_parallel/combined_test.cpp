// SPDX-License-Identifier: BSD-3-Clause
// fully_shard combined with context parallelism, tensor parallelism by the
// styles of PyTorch 2.0, and gradient scaling for half precision.
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/parallel/context_parallel.h>
#include <dtensor/parallel/gradients.h>
#include <tests/parallel/modules.h>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>

#include <limits>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

constexpr int64_t kVocab = 17;
constexpr int64_t kTokens = 13; // divisible by no number of ranks
constexpr int64_t kWidth = 12;
constexpr int64_t kHead = 4;

struct DecoderLayerImpl : torch::nn::Module {
  DecoderLayerImpl()
      : norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        q(register_module("q", torch::nn::Linear(kWidth, 16))),
        k(register_module("k", torch::nn::Linear(kWidth, 8))),
        v(register_module("v", torch::nn::Linear(kWidth, 8))),
        o(register_module("o", torch::nn::Linear(16, kWidth))) {}
  static at::Tensor in_heads(const at::Tensor& t) {
    return t.unflatten(-1, {-1, kHead}).transpose(1, 2);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = norm(x);
    const auto out = at::scaled_dot_product_attention(
        in_heads(q(y)), in_heads(k(y)), in_heads(v(y)), {}, 0, true, {}, true);
    return x + o(out.transpose(1, 2).flatten(-2));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear q, k, v, o;
};
TORCH_MODULE(DecoderLayer);

struct DecoderImpl : torch::nn::Module {
  DecoderImpl()
      : tokens(register_module("tokens", torch::nn::Embedding(kVocab, kWidth))),
        places(register_module("places", torch::nn::Embedding(20, kWidth))),
        layers(register_module("layers", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(kWidth, kVocab))) {
    for (int i = 0; i < 2; ++i) {
      layers->push_back(DecoderLayer());
    }
  }
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& positions) {
    auto x = tokens(ids) + places(positions);
    for (const auto& layer : *layers) {
      x = layer->as<DecoderLayerImpl>()->forward(x);
    }
    return head(x);
  }
  torch::nn::Embedding tokens, places;
  torch::nn::ModuleList layers;
  torch::nn::Linear head;
};
TORCH_MODULE(Decoder);

struct Sequences {
  at::Tensor ids, labels, positions;
};

Sequences sequences_of(int64_t step) {
  const auto all = torch::randint(
      kVocab,
      {8, kTokens + 1},
      at::detail::createCPUGenerator(static_cast<uint64_t>(step)),
      torch::kLong);
  return {
      all.narrow(1, 0, kTokens).contiguous(),
      all.narrow(1, 1, kTokens).contiguous(),
      at::arange(kTokens, at::kLong)};
}

// Returns this rank's term of the mean over all tokens of all sequences. The
// terms of all ranks add up to the loss.
at::Tensor part_of_loss(Decoder& model, const Sequences& mine) {
  return torch::nn::functional::cross_entropy(
             model(mine.ids, mine.positions).flatten(0, 1),
             mine.labels.flatten(),
             torch::nn::functional::CrossEntropyFuncOptions().reduction(
                 torch::kSum)) /
      (8 * kTokens);
}

struct Step {
  double loss = 0;
  std::vector<at::Tensor> gradients; // full tensors
};

void finish_step(
    Step& step,
    const Decoder& model,
    torch::optim::Optimizer& optimizer) {
  for (const auto& parameter : model->parameters()) {
    step.gradients.push_back(full(parameter.grad()).clone());
  }
  clip_grad_norm_(model->parameters(), 0.5);
  optimizer.step();
  optimizer.zero_grad();
}

constexpr int64_t kSteps = 4;

std::vector<Step> train_alone() {
  auto model = filled(Decoder());
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions(1e-2));
  std::vector<Step> steps;
  for (int64_t i = 0; i < kSteps; ++i) {
    const auto loss = part_of_loss(model, sequences_of(i));
    loss.backward();
    steps.push_back({loss.item<double>(), {}});
    finish_step(steps.back(), model, optimizer);
  }
  return steps;
}

struct Cut {
  std::vector<int64_t> shape; // sizes of dp, cp and tp
  RotateMethod method;
  bool flat; // shards over dp and cp; else replicates over dp
};

DeviceMesh parameters_mesh(const DeviceMesh& mesh, bool flat) {
  const auto both = mesh[{"dp", "cp"}];
  return flat ? both.flatten("dp_cp") : both;
}

// Distributes the model. `adds_up`: units sum gradients instead of averaging.
void spread(Decoder& model, const DeviceMesh& mesh, bool flat, bool adds_up) {
  const auto data = parameters_mesh(mesh, flat);
  const auto make_unit = [&](torch::nn::Module& module) {
    auto unit = fully_shard(module, {.mesh = data});
    if (adds_up) {
      unit.set_gradient_divide_factor(1);
    }
  };
  if (mesh.size("tp") > 1) {
    parallelize_module(
        *model,
        mesh["tp"],
        {{"layers.*.[qkv]", ColwiseParallel()},
         {"layers.*.o", RowwiseParallel()}});
  }
  for (const auto& layer : *model->layers) {
    make_unit(*layer);
  }
  make_unit(*model);
}

Step step_in_parts(
    Decoder& model,
    const DeviceMesh& mesh,
    RotateMethod method,
    int64_t number,
    bool adds_up) {
  auto all = sequences_of(number);
  const auto rows = 8 / mesh.size("dp");
  const auto first = rows * mesh.get_local_rank("dp");
  all.ids = all.ids.narrow(0, first, rows).contiguous();
  all.labels = all.labels.narrow(0, first, rows).contiguous();
  const auto scope = context_parallel(
      mesh["cp"],
      {.buffers = {all.ids, all.labels, all.positions},
       .buffer_seq_dims = {1, 1, 0},
       .rotate_method = method});
  const auto loss = part_of_loss(model, all);
  // With averaging units, scales the loss so that the average is the sum.
  const auto ranks = mesh.size("dp") * mesh.size("cp");
  (loss * (adds_up ? 1 : ranks)).backward();
  auto sum = full(loss);
  for (const auto* dim : {"dp", "cp"}) {
    sum = get_group(mesh, dim).all_reduce(sum, ReduceOp::kSum);
  }
  return {sum.item<double>(), {}};
}

void expect_as_alone(const Cut& cut, const std::vector<Step>& truth) {
  run_ranks(cut.shape[0] * cut.shape[1] * cut.shape[2], [&] {
    const auto mesh = init_device_mesh(at::kCPU, cut.shape, {"dp", "cp", "tp"});
    auto model = filled(Decoder());
    const bool adds_up = cut.flat;
    spread(model, mesh, cut.flat, adds_up);
    torch::optim::AdamW optimizer(
        model->parameters(), torch::optim::AdamWOptions(1e-2));
    for (size_t i = 0; i < truth.size(); ++i) {
      auto step = step_in_parts(
          model, mesh, cut.method, static_cast<int64_t>(i), adds_up);
      EXPECT_NEAR(step.loss, truth[i].loss, 1e-9) << mesh << ", step " << i;
      finish_step(step, model, optimizer);
      for (size_t p = 0; p < step.gradients.size(); ++p) {
        expect_close(
            step.gradients[p],
            truth[i].gradients[p],
            c10::str("step ", i, ", gradient of parameter ", p),
            1e-9);
      }
    }
  });
}

TEST(FullyShardCombined, TrainsOnCutSequences) {
  const auto truth = train_alone();
  for (const auto method :
       {RotateMethod::kAllGather,
        RotateMethod::kAllToAll,
        RotateMethod::kUlysses}) {
    for (const bool flat : {false, true}) {
      expect_as_alone({{2, 2, 1}, method, flat}, truth);
    }
  }
  expect_as_alone({{1, 3, 1}, RotateMethod::kAllToAll, true}, truth);
}

TEST(FullyShardCombined, TrainsOnCutSequencesBesideTensorParallelism) {
  const auto truth = train_alone();
  for (const bool flat : {false, true}) {
    expect_as_alone({{2, 2, 2}, RotateMethod::kAllToAll, flat}, truth);
    expect_as_alone({{1, 2, 2}, RotateMethod::kAllGather, flat}, truth);
  }
}

at::Tensor
lbfgs_step(Mlp& mlp, torch::optim::LBFGS& optimizer, const at::Tensor& input) {
  return optimizer.step([&] {
    optimizer.zero_grad();
    const auto loss = mlp(input).square().mean();
    loss.backward();
    return loss.detach();
  });
}

// LBFGS treats all parameters as one vector.
TEST(FullyShardCombined, TakesAnOptimizerOfOneVector) {
  const auto input = uniform({4, 8}, 3);
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto plain = filled(Mlp(8, 12));
    auto mlp = filled(Mlp(8, 12));
    parallelize_module(*mlp, mesh["tp"], mlp_plan());
    fully_shard(*mlp, {.mesh = mesh["dp"]});
    const auto options = torch::optim::LBFGSOptions(0.1).max_iter(3);
    torch::optim::LBFGS alone(plain->parameters(), options);
    torch::optim::LBFGS optimizer(mlp->parameters(), options);
    for (int step = 0; step < 3; ++step) {
      lbfgs_step(plain, alone, input);
      lbfgs_step(mlp, optimizer, input);
      for (const auto& item : mlp->named_parameters()) {
        expect_close(
            item.value(),
            plain->named_parameters()[item.key()],
            c10::str("step ", step, ", ", item.key()),
            1e-9);
      }
    }
  });
}

// Unevenly sharded shards cannot be flattened into one vector.
TEST(FullyShardCombined, RefusesOneVectorOfUnevenNestedShards) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto mlp = filled(Mlp(6, 7));
    parallelize_module(*mlp, mesh["tp"], mlp_plan());
    fully_shard(*mlp, {.mesh = mesh["dp"]});
    torch::optim::LBFGS optimizer(mlp->parameters());
    const auto error = error_of([&] {
      lbfgs_step(mlp, optimizer, uniform({2, 6}, 3));
    });
    EXPECT_THAT(error, testing::HasSubstr("cannot keep the sharding of"));
  });
}

// Minimal GradScaler.
struct Scaler {
  at::Tensor scale = at::full({}, 1024., at::kFloat);
  at::Tensor growth = at::zeros({}, at::kInt);
  at::Tensor found = at::zeros({}, at::kFloat);

  // Divides gradients by the scale. Returns true if all are finite.
  bool unscale(const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : parameters) {
      gradients.push_back(parameter.grad());
    }
    found.zero_();
    at::_amp_foreach_non_finite_check_and_unscale_(
        gradients, found, scale.reciprocal());
    return found.item<float>() == 0;
  }
  void update() {
    at::_amp_update_scale_(scale, growth, found, 2., 0.5, /*interval=*/3);
  }
};

// Makes the last row of the gradient infinite, on the rank that owns it.
void spoil(const at::Tensor& parameter) {
  const torch::NoGradGuard no_grad;
  constexpr auto kInfinity = std::numeric_limits<double>::infinity();
  const auto& gradient = parameter.grad();
  const auto index = at::tensor({gradient.size(0) - 1});
  auto spoilt = at::zeros(gradient.sizes(), at::kDouble);
  spoilt.index_fill_(0, index, kInfinity);
  if (!is_dtensor(gradient)) {
    gradient.add_(spoilt);
    return;
  }
  const DTensor distributed(gradient);
  gradient.add_(distribute_tensor(
      spoilt,
      distributed.device_mesh(),
      Placements(
          distributed.placements().begin(), distributed.placements().end()),
      std::nullopt));
}

struct Scaled {
  std::vector<double> scales;
  std::vector<bool> used;
};

// Makes all gradients infinite in the third step, and one number in the sixth.
template <class Loss>
Scaled train_scaled(Mlp& mlp, const Loss& loss_of) {
  torch::optim::AdamW optimizer(
      mlp->parameters(), torch::optim::AdamWOptions(1e-2));
  Scaler scaler;
  Scaled result;
  for (int64_t step = 0; step < 9; ++step) {
    optimizer.zero_grad();
    const auto blow_up =
        step == 2 ? std::numeric_limits<double>::infinity() : 1.;
    (loss_of(step) * scaler.scale.to(at::kDouble) * blow_up).backward();
    if (step == 5) {
      spoil(mlp->w2->weight);
    }
    const bool good = scaler.unscale(mlp->parameters());
    if (good) {
      clip_grad_norm_(mlp->parameters(), 0.5);
      optimizer.step();
    }
    scaler.update();
    result.used.push_back(good);
    result.scales.push_back(scaler.scale.item<double>());
  }
  return result;
}

void expect_scales_alike(
    const std::vector<int64_t>& shape,
    const std::vector<std::string>& names) {
  const auto input = [](int64_t step) {
    return uniform({12, 6}, static_cast<uint64_t>(step));
  };
  auto plain = filled(Mlp(6, 7));
  const auto truth = train_scaled(
      plain, [&](int64_t step) { return plain(input(step)).square().mean(); });
  EXPECT_EQ(truth.used, (std::vector<bool>{1, 1, 0, 1, 1, 0, 1, 1, 1}));
  run_ranks(c10::multiply_integers(shape), [&] {
    const auto mesh = init_device_mesh(at::kCPU, shape, names);
    const bool tp = names.back() == "tp";
    const auto data = tp ? mesh["dp"] : mesh;
    auto mlp = filled(Mlp(6, 7));
    if (tp) {
      parallelize_module(*mlp, mesh["tp"], mlp_plan());
    }
    fully_shard(*mlp->w1, {.mesh = data});
    fully_shard(*mlp, {.mesh = data});
    int64_t index = 0;
    for (int64_t m = 0; m < data.ndim(); ++m) {
      index = index * data.size(m) + data.get_local_rank(m);
    }
    const auto rows = 12 / data.size();
    const auto mine = train_scaled(mlp, [&](int64_t step) {
      return mlp(input(step).narrow(0, index * rows, rows)).square().mean();
    });
    EXPECT_EQ(mine.used, truth.used);
    EXPECT_EQ(mine.scales, truth.scales);
    expect_same_parameters(*mlp, *plain);
  });
}

TEST(FullyShardCombined, ScalesGradientsAndSkipsWhatIsNotFinite) {
  expect_scales_alike({3}, {"dp"});
  expect_scales_alike({2, 2}, {"dr", "dp"});
  expect_scales_alike({2, 2}, {"dp", "tp"});
}

// A list may contain gradients on several meshes in any order.
TEST(FullyShardCombined, FindsInfinitiesOnEveryMesh) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    for (const bool shards_first : {false, true}) {
      for (const bool spoils_first : {false, true}) {
        auto mlp = filled(Mlp(6, 7));
        parallelize_module(*mlp, mesh["tp"], mlp_plan());
        fully_shard( // the other one stays on "tp"
            shards_first ? *mlp->w1 : *mlp->w2,
            {.mesh = mesh["dp"]});
        mlp(uniform({2, 6}, 3)).square().mean().backward();
        Scaler scaler;
        EXPECT_TRUE(scaler.unscale(mlp->parameters()));
        spoil((spoils_first ? mlp->w1 : mlp->w2)->weight);
        EXPECT_FALSE(scaler.unscale(mlp->parameters()))
            << "rank " << get_rank() << ", in parts: first " << shards_first
            << ", infinite: first " << spoils_first;
      }
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
