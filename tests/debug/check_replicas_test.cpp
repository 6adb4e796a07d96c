// SPDX-License-Identifier: BSD-3-Clause
// CheckReplicas detects programs that run but compute wrong results, and names
// the first tensor that differs. Correct programs are not disturbed.
#include <dtensor/debug/check_replicas.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/parallel/gradients.h>
#include <dtensor/parallel/loss_parallel.h>
#include <dtensor/parallel/nn_modules.h>
#include <dtensor/parallel/prepare_module.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <dtensor/random/random.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

constexpr int64_t kRanks = 2;
constexpr int64_t kWidth = 4;
constexpr int64_t kClasses = 8;

// Writes to this rank's local tensor without a write to the DTensor.
void add_to_local(const at::Tensor& dtensor, double value) {
  auto local = DTensor(dtensor.detach()).to_local();
  local.add_(value);
}

struct ClassifierImpl : torch::nn::Module {
  ClassifierImpl()
      : embed(register_module("embed", torch::nn::Embedding(10, kWidth))),
        mlp(register_module("mlp", Mlp(kWidth, 8))),
        dropout(register_module("dropout", torch::nn::Dropout(0.5))),
        head(register_module("head", torch::nn::Linear(kWidth, kClasses))) {}
  at::Tensor forward(const at::Tensor& ids) {
    return head(dropout(mlp(embed(ids))));
  }
  torch::nn::Embedding embed;
  Mlp mlp;
  torch::nn::Dropout dropout;
  torch::nn::Linear head;
};
TORCH_MODULE(Classifier);

ParallelizePlan classifier_plan(const Placement& logits = Replicate()) {
  return {
      {"embed", RowwiseParallel({.input_layouts = Replicate()})},
      {"mlp.w1", ColwiseParallel()},
      {"mlp.w2", RowwiseParallel()},
      {"head", ColwiseParallel({.output_layouts = logits})}};
}

Classifier classifier(
    const DeviceMesh& mesh,
    const Placement& logits = Replicate()) {
  auto model = filled(Classifier());
  parallelize_module(*model, mesh, classifier_plan(logits));
  return model;
}

at::Tensor ids_of(int64_t seed) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::randint(10, {6}, generator, at::kLong);
}

at::Tensor loss_of(const at::Tensor& logits, int64_t classes = kClasses) {
  return torch::nn::functional::cross_entropy(logits, at::arange(6) % classes);
}

// Expects the error `text` on each of the model's ranks.
template <class Fn>
void expect_on_ranks(int64_t ranks, const std::string& text, const Fn& fn) {
  run_ranks(ranks, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
    EXPECT_EQ(error_of([&] { fn(mesh); }), text);
  });
}

TEST(CheckReplicas, FindsDifferentDataOnEachRank) {
  expect_on_ranks(
      kRanks,
      "[CheckReplicas] the input of module \"embed\" differs between the ranks "
      "of mesh dimension \"tp\": the i64[6] of rank 1 differs by up to 7 from "
      "that of rank 0. Pass the same input on these ranks, or set the style's "
      "input_layouts to its actual layout.",
      [](const DeviceMesh& mesh) {
        auto model = classifier(mesh);
        CheckReplicas check(*model, mesh);
        model(ids_of(0) * 0 + 1 + 7 * get_rank() % 8);
      });
}

TEST(CheckReplicas, FindsDifferentShapesOnEachRank) {
  expect_on_ranks(
      3,
      "[CheckReplicas] the input of module \"w1\" differs between the ranks of "
      "mesh dimension \"tp\": f64[3, 4] on ranks 0, 1; f64[2, 4] on rank 2. "
      "Pass the same input on these ranks, or set the style's input_layouts to "
      "its actual layout.",
      [](const DeviceMesh& mesh) {
        auto mlp = filled(Mlp(kWidth, 6));
        parallelize_module(*mlp, mesh, mlp_plan());
        CheckReplicas check(*mlp, mesh);
        mlp(uniform({get_rank() == 2 ? 2 : 3, kWidth}, 1));
      });
}

struct EchoImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return x * 2;
  }
};
DTENSOR_MODULE(Echo);

// The style acts through hooks.
TEST(CheckReplicas, FindsAnInputThatHooksTake) {
  expect_on_ranks(
      kRanks,
      "[CheckReplicas] the input of module \"0\" differs between the ranks of "
      "mesh dimension \"tp\": the f32[2, 4] of rank 1 differs by up to 1 from "
      "that of rank 0. Pass the same input on these ranks, or set the style's "
      "input_layouts to its actual layout.",
      [](const DeviceMesh& mesh) {
        torch::nn::Sequential model{Echo()};
        parallelize_module(
            *model,
            mesh,
            {{"0",
              PrepareModuleInput(
                  {.input_layouts = {Replicate()},
                   .desired_input_layouts = {Shard(0)}})}});
        CheckReplicas check(*model, mesh);
        model->forward(at::full({2, 4}, static_cast<double>(get_rank())));
      });
}

// Tokens agree but targets differ.
TEST(CheckReplicas, FindsDifferentTargetsByTheLoss) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto model = classifier(mesh);
    CheckReplicas check(*model, mesh);
    const auto loss = loss_of(model(ids_of(0)), 4 - get_rank());
    EXPECT_THAT(
        error_of([&] { loss.backward(); }),
        testing::StartsWith("[CheckReplicas] the loss differs between the "
                            "ranks of mesh dimension \"tp\": "));
  });
}

TEST(CheckReplicas, FindsALossOfAShardOfTheClasses) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto model = classifier(mesh, Shard(-1));
    model->eval();
    CheckReplicas check(*model, mesh);
    const auto loss = loss_of(model(ids_of(0)), kClasses / kRanks);
    const auto error = error_of([&] { loss.backward(); });
    EXPECT_THAT(
        error,
        testing::MatchesRegex(
            "\\[CheckReplicas\\] the loss differs between the ranks of mesh "
            "dimension \"tp\": [0-9.]+ on rank 0; [0-9.]+ on rank 1. Compute "
            "the loss from the full output: output_layouts = Replicate\\(\\), "
            "or loss_parallel\\(\\). Set losses = false if each of these ranks "
            "has its own loss on purpose."));
  });
}

TEST(CheckReplicas, FindsALossThatIsADTensor) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    Mlp mlp(kWidth, 8);
    CheckReplicas check(*mlp);
    const at::Tensor x =
        distribute_tensor(uniform({3, kWidth}, 1), mesh).requires_grad_();
    const auto loss = x.sum();
    add_to_local(loss, static_cast<double>(get_rank()));
    EXPECT_THAT(
        error_of([&] { loss.backward(); }),
        testing::StartsWith("[CheckReplicas] the loss differs between the "
                            "ranks of mesh dimension \"tp\": "));
  });
}

// Neither a call of ones_like by the program nor a given gradient reveals the
// loss.
TEST(CheckReplicas, IgnoresALossWithAGivenGradient) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto model = classifier(mesh, Shard(-1));
    model->eval();
    CheckReplicas check(*model, mesh);
    const auto loss = loss_of(model(ids_of(0)), kClasses / kRanks);
    loss.backward(at::ones_like(loss));
    check.finish();
  });
}

TEST(CheckReplicas, AcceptsDifferentLossesIfDisabled) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto model = classifier(mesh, Shard(-1));
    model->eval();
    CheckReplicas check(*model, mesh, {.losses = false});
    loss_of(model(ids_of(0)), kClasses / kRanks).backward();
    check.finish();
  });
}

TEST(CheckReplicas, FindsAGradientThatDiffers) {
  expect_on_ranks(
      kRanks,
      "[CheckReplicas] the gradient of the output of module \"w2\" differs "
      "between the ranks of mesh dimension \"tp\": the f64[3, 4] of rank 1 "
      "differs by up to 1 from that of rank 0. Use the output in the same way "
      "on each of these ranks, or change its layout (output_layouts, or "
      "grad_placements of to_local).",
      [](const DeviceMesh& mesh) {
        auto mlp = filled(Mlp(kWidth, 8));
        parallelize_module(*mlp, mesh, mlp_plan());
        CheckReplicas check(*mlp, mesh);
        const auto y = mlp(uniform({3, kWidth}, 1));
        y.backward(at::full_like(y, static_cast<double>(get_rank())));
      });
}

TEST(CheckReplicas, FindsAGradientOfToLocal) {
  expect_on_ranks(
      kRanks,
      "[CheckReplicas] the gradient of a local tensor differs between the "
      "ranks of mesh dimension \"tp\": the f64[3, 4] of rank 1 differs by up "
      "to 1 from that of rank 0. Use the output in the same way on each of "
      "these ranks, or change its layout (output_layouts, or grad_placements "
      "of to_local).",
      [](const DeviceMesh& mesh) {
        Mlp mlp(kWidth, 8);
        CheckReplicas check(*mlp);
        const at::Tensor x =
            distribute_tensor(uniform({3, kWidth}, 1), mesh).requires_grad_();
        const auto local = DTensor(x * 2).to_local();
        local.backward(at::full_like(local, static_cast<double>(get_rank())));
      });
}

TEST(CheckReplicas, FindsAParameterThatDiffers) {
  expect_on_ranks(
      4,
      "[CheckReplicas] the parameter \"mlp.w2.bias\" differs between the ranks "
      "of mesh dimension \"tp\": the f64[4] of ranks 1, 3 differ by up to 0.25 "
      "from that of rank 0. Seed all ranks alike before the model is made, "
      "load the same weights on all of them, and write to the parameter on all "
      "or on none.",
      [](const DeviceMesh& mesh) {
        auto model = classifier(mesh);
        add_to_local(model->mlp->w2->bias, get_rank() % 2 == 0 ? 0 : 0.25);
        CheckReplicas check(*model, mesh);
      });
}

TEST(CheckReplicas, FindsAPlainParameterThatDiffers) {
  expect_on_ranks(
      kRanks,
      "[CheckReplicas] the parameter \"w1.weight\" differs between the ranks "
      "of mesh dimension \"tp\": the f64[8, 4] of rank 1 differs by up to 0.5 "
      "from that of rank 0. Seed all ranks alike before the model is made, "
      "load the same weights on all of them, and write to the parameter on all "
      "or on none.",
      [](const DeviceMesh& mesh) {
        auto mlp = filled(Mlp(kWidth, 8));
        const torch::NoGradGuard no_grad;
        mlp->w1->weight.add_(0.5 * static_cast<double>(get_rank()));
        CheckReplicas check(*mlp, mesh);
      });
}

TEST(CheckReplicas, IgnoresLocalParameters) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto mlp = filled(Mlp(kWidth, 8));
    const torch::NoGradGuard no_grad;
    mlp->w1->weight.add_(static_cast<double>(get_rank()));
    CheckReplicas check(*mlp, mesh, {.local_parameters = {"w1.*"}});
    EXPECT_EQ(check.compared(), 2);
  });
}

// A parameter that drifts is found before the next forward pass.
TEST(CheckReplicas, FindsAParameterThatDrifts) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto model = classifier(mesh);
    CheckReplicas check(*model, mesh);
    loss_of(model(ids_of(0))).backward();
    if (get_rank() == 1) {
      add_to_local(model->mlp->w2->bias, 1e-9);
    }
    EXPECT_THAT(
        error_of([&] { model(ids_of(1)); }),
        testing::StartsWith(
            "[CheckReplicas] the parameter \"mlp.w2.bias\" differs between the "
            "ranks of mesh dimension \"tp\": the f64[4] of rank 1 differs by "
            "up to 1e-09 from that of rank 0."));
  });
}

TEST(CheckReplicas, FindsAGradientThatOneRankChanged) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto model = classifier(mesh);
    CheckReplicas check(*model, mesh);
    loss_of(model(ids_of(0))).backward();
    if (get_rank() == 1) {
      model->mlp->w2->bias.mutable_grad() = at::Tensor();
    }
    EXPECT_EQ(
        error_of([&] { check.finish(); }),
        "[CheckReplicas] the gradient of the parameter \"mlp.w2.bias\" differs "
        "between the ranks of mesh dimension \"tp\": f64[4] on rank 0; none on "
        "rank 1. Run the same backward passes on these ranks, and write to the "
        "gradient on all or on none.");
  });
}

constexpr const char* kInputOfW1Differs =
    "[CheckReplicas] the input of module \"w1\" differs between the ranks of "
    "mesh dimension \"tp\": the f64[3, 4] of rank 1 differs by up to 1 from "
    "that of rank 0. Pass the same input on these ranks, or set the style's "
    "input_layouts to its actual layout.";

TEST(CheckReplicas, FindsAReplicatedTensorThatDiffers) {
  expect_on_ranks(kRanks, kInputOfW1Differs, [](const DeviceMesh& mesh) {
    auto mlp = filled(Mlp(kWidth, 8));
    parallelize_module(*mlp, mesh, mlp_plan());
    const auto x = distribute_tensor(uniform({3, kWidth}, 1), mesh);
    add_to_local(x, static_cast<double>(get_rank()));
    CheckReplicas check(*mlp, mesh);
    mlp(x);
  });
}

// A write to a DTensor does not change the version of its local tensor.
TEST(CheckReplicas, FindsAWriteBetweenAnOutputAndAnInput) {
  expect_on_ranks(kRanks, kInputOfW1Differs, [](const DeviceMesh& mesh) {
    auto mlp = filled(Mlp(kWidth, 8));
    parallelize_module(
        *mlp,
        mesh,
        {{"w1", ColwiseParallel()},
         {"w2",
          RowwiseParallel(
              {.input_layouts = Replicate(), .use_local_output = false})}});
    CheckReplicas check(*mlp, mesh);
    const torch::NoGradGuard no_grad;
    const auto y = mlp->w2(uniform({3, 8}, 1));
    auto local = DTensor(y).to_local();
    local.add_(static_cast<double>(get_rank()));
    mlp->w1(y);
  });
}

TEST(CheckReplicas, FindsAnArgumentOfFromLocal) {
  expect_on_ranks(
      kRanks,
      "[CheckReplicas] the argument of from_local differs between the ranks of "
      "mesh dimension \"tp\": 0 on rank 0; 1 on rank 1. Pass the same tensor "
      "on these ranks, or pass its actual placements.",
      [](const DeviceMesh& mesh) {
        Mlp mlp(kWidth, 8);
        CheckReplicas check(*mlp);
        DTensor::from_local(
            at::full({1}, static_cast<double>(get_rank())),
            mesh,
            {Replicate()});
      });
}

TEST(CheckReplicas, FindsRandomStatesOutOfStep) {
  expect_on_ranks(
      kRanks,
      "[CheckReplicas] the random state at module \"w1\" differs between the "
      "ranks of mesh dimension \"tp\": the state on rank 1 differs from that "
      "on rank 0. Seed all ranks alike with dtensor::manual_seed(), and draw "
      "the same random numbers on all of them.",
      [](const DeviceMesh& mesh) {
        auto mlp = filled(Mlp(kWidth, 8));
        parallelize_module(*mlp, mesh, mlp_plan());
        dtensor::manual_seed(1);
        CheckReplicas check(*mlp, mesh);
        if (get_rank() == 1) {
          at::rand({1});
        }
        mlp(uniform({3, kWidth}, 1));
      });
}

TEST(CheckReplicas, FindsStreamsOutOfStep) {
  expect_on_ranks(
      kRanks,
      "[CheckReplicas] the stream of random numbers differs between the ranks "
      "of mesh dimension \"tp\": seed 1 and position 0 on rank 0; seed 1 and "
      "position 1 on rank 1. Seed all ranks alike with dtensor::manual_seed(), "
      "and draw the same random numbers on all of them.",
      [](const DeviceMesh& mesh) {
        Mlp mlp(kWidth, 8);
        dtensor::manual_seed(1);
        if (get_rank() == 1) {
          dtensor::randn({2}, mesh);
        }
        CheckReplicas check(*mlp);
        dtensor::randn({4}, mesh, {Shard(0)});
      });
}

// Compares a number, `value` on this rank, between the ranks.
void compare_number(
    const DeviceMesh& mesh,
    double value,
    const std::string& name) {
  Mlp mlp(kWidth, 8);
  CheckReplicas check(*mlp);
  check.compare(at::scalar_tensor(value), mesh, name);
}

TEST(CheckReplicas, FindsATensorOfTheProgram) {
  expect_on_ranks(
      kRanks,
      "[CheckReplicas] \"learning rate\" differs between the ranks of mesh "
      "dimension \"tp\": 0.5 on rank 0; 1.5 on rank 1. Compute the tensor in "
      "the same way on these ranks.",
      [](const DeviceMesh& mesh) {
        const auto value = 0.5 + static_cast<double>(get_rank());
        compare_number(mesh, value, "learning rate");
      });
}

TEST(CheckReplicas, TakesNamesWithTabsAndQuotes) {
  expect_on_ranks(
      kRanks,
      "[CheckReplicas] \"a\tb\n\"c\"\" differs between the ranks of mesh "
      "dimension \"tp\": 0 on rank 0; 1 on rank 1. Compute the tensor in the "
      "same way on these ranks.",
      [](const DeviceMesh& mesh) {
        const auto value = static_cast<double>(get_rank());
        compare_number(mesh, value, "a\tb\n\"c\"");
      });
}

TEST(CheckReplicas, FindsRanksThatCallDifferentModules) {
  expect_on_ranks(
      kRanks,
      "[CheckReplicas] the ranks of mesh dimension \"tp\" have reached "
      "different points: the input of module \"0\" on rank 0; the input of "
      "module \"1\" on rank 1. Call the same modules in the same order on all "
      "of these ranks.",
      [](const DeviceMesh& mesh) {
        torch::nn::Sequential model(
            torch::nn::Linear(kWidth, kWidth),
            torch::nn::Linear(kWidth, kWidth));
        parallelize_module(*model, mesh, {{"*", ColwiseParallel()}});
        CheckReplicas check(*model, mesh);
        model[static_cast<size_t>(get_rank())]
            ->as<torch::nn::Linear>()
            ->forward(at::ones({2, kWidth}));
      });
}

TEST(CheckReplicas, ComparesWithATolerance) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto mlp = filled(Mlp(kWidth, 8));
    parallelize_module(*mlp, mesh, mlp_plan());
    const auto x =
        at::full({3, kWidth}, get_rank() == 0 ? 2 : 2 + 1e-6, at::kDouble);
    {
      CheckReplicas check(*mlp, mesh, {.tolerance = 1e-6});
      mlp(x);
    }
    CheckReplicas check(*mlp, mesh, {.tolerance = 1e-7});
    EXPECT_NE(error_of([&] { mlp(x); }), "");
  });
}

// Equal infinities and NaN do not differ, and an infinity does not enlarge the
// tolerance of other elements.
TEST(CheckReplicas, ComparesFiniteElementsWithATolerance) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    const auto inf = std::numeric_limits<double>::infinity();
    const auto nan = std::numeric_limits<double>::quiet_NaN();
    const auto rank = static_cast<double>(get_rank());
    auto mlp = filled(Mlp(kWidth, 8));
    CheckReplicas check(*mlp, mesh, {.tolerance = 1e-6});
    const auto error_with = [&](double last) {
      return error_of([&] {
        check.compare(
            at::tensor({inf, -inf, nan, 2.0, last}, at::kDouble), mesh, "x");
      });
    };
    const auto differs_by = [](const std::string& distance) {
      return "[CheckReplicas] \"x\" differs between the ranks of mesh "
             "dimension "
             "\"tp\": the f64[5] of rank 1 differs by up to " +
          distance +
          " from that of rank 0. Compute the tensor in the same way on these "
          "ranks.";
    };
    EXPECT_EQ(error_with(2 + 1e-6 * rank), "");
    EXPECT_EQ(error_with(2 + rank), differs_by("1"));
    EXPECT_EQ(error_with(rank == 0 ? 2 : inf), differs_by("inf"));
    EXPECT_EQ(error_with(rank == 0 ? 2 : nan), differs_by("nan"));
  });
}

TEST(CheckReplicas, RefusesToCompareDTensors) {
  expect_on_ranks(
      kRanks,
      "[CheckReplicas] \"x\" is a DTensor. Pass a plain tensor, such as the "
      "result of to_local().",
      [](const DeviceMesh& mesh) {
        Mlp mlp(kWidth, 8);
        CheckReplicas check(*mlp);
        check.compare(distribute_tensor(at::ones({2}), mesh), mesh, "x");
      });
}

// Runs several steps of a correct program with dropout, clipping and an
// optimizer.
template <class Model, class Loss>
void expect_silent(Model& model, const DeviceMesh& mesh, const Loss& loss) {
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  CheckReplicas check(*model, mesh);
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    loss(step).backward();
    clip_grad_norm_(model->parameters(), 0.5);
    optimizer.step();
    check.finish();
  }
  EXPECT_GT(check.compared(), 20);
}

TEST(CheckReplicas, IsSilentUnderTensorParallelism) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    auto model = classifier(mesh);
    expect_silent(model, mesh, [&](int64_t step) {
      return loss_of(model(ids_of(step)));
    });
  });
}

TEST(CheckReplicas, IsSilentUnderLossParallel) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto model = filled(Classifier());
    auto plan = classifier_plan();
    plan.back() = {
        "head",
        ColwiseParallel(
            {.output_layouts = Shard(-1), .use_local_output = false})};
    parallelize_module(*model, mesh, plan);
    const auto scope = loss_parallel();
    expect_silent(model, mesh, [&](int64_t step) {
      return loss_of(model(ids_of(step)));
    });
  });
}

// Each rank's loss covers its own rows.
TEST(CheckReplicas, IsSilentUnderSequenceParallelism) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto model = filled(Classifier());
    parallelize_module(
        *model,
        mesh,
        {{"embed",
          RowwiseParallel(
              {.input_layouts = Replicate(), .output_layouts = Shard(0)})},
         {"mlp.w1", ColwiseParallel({.input_layouts = Shard(0)})},
         {"mlp.w2", RowwiseParallel({.output_layouts = Shard(0)})},
         {"head",
          ColwiseParallel(
              {.input_layouts = Shard(0), .output_layouts = Shard(0)})}});
    model->eval();
    expect_silent(model, mesh, [&](int64_t step) {
      const auto logits = model(ids_of(step)); // (3, 8) of (6, 8)
      return torch::nn::functional::cross_entropy(
          logits, at::arange(3) + 3 * get_rank());
    });
  });
}

// Activations between modules and all parameters are DTensors.
TEST(CheckReplicas, IsSilentOnDTensors) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto model = filled(Classifier());
    parallelize_module(
        *model, mesh, classifier_plan(), {.keep_dtensors = true});
    distribute_module(*model, mesh);
    expect_silent(model, mesh, [&](int64_t step) {
      return loss_of(DTensor(model(ids_of(step))).full_tensor());
    });
  });
}

// CommDebugMode counts the same collectives with and without the scope.
TEST(CheckReplicas, CollectivesAreNotCounted) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto model = classifier(mesh);
    CommDebugMode comm;
    loss_of(model(ids_of(0))).backward();
    const auto without = comm.records().size();
    const auto count = comm.get_total_counts();
    CheckReplicas check(*model, mesh);
    loss_of(model(ids_of(0))).backward();
    check.finish();
    EXPECT_EQ(comm.records().size(), without);
    EXPECT_EQ(comm.get_total_counts(), 2 * count);
  });
}

// A scope does not change results and leaves no state behind.
TEST(CheckReplicas, ChangesNothing) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    const auto step_of = [&](bool checked) {
      dtensor::manual_seed(3);
      auto model = classifier(mesh);
      std::optional<CheckReplicas> check;
      if (checked) {
        check.emplace(*model, mesh);
      }
      const auto loss = loss_of(model(ids_of(0)));
      check.reset();
      loss.backward();
      return at::cat({loss.detach().view({1}), at::rand({2})});
    };
    EXPECT_TRUE(at::equal(step_of(true), step_of(false)));
  });
}

TEST(CheckReplicas, ScopesNest) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    auto model = classifier(mesh);
    CheckReplicas outer(*model, mesh);
    {
      CheckReplicas inner(*model, mesh);
      loss_of(model(ids_of(0))).backward();
      EXPECT_GT(inner.compared(), 4);
    }
    EXPECT_NE(error_of([&] { model(ids_of(get_rank())); }), "");
  });
}

// Other ranks compare nothing, and may have other values.
TEST(CheckReplicas, ComparesOnTheRanksOfAMesh) {
  run_ranks(3, [] {
    const auto mesh = make_device_mesh(at::kCPU, at::arange(2), {"tp"});
    const bool is_outside = get_rank() == 2;
    auto mlp = filled(Mlp(kWidth, 6));
    parallelize_module(*mlp, mesh, mlp_plan());
    CheckReplicas check(*mlp, mesh);
    check.compare(at::full({2}, is_outside ? 7 : 1), mesh, "x");
    mlp(uniform({3, kWidth}, is_outside ? 2 : 1));
    check.finish();
    EXPECT_EQ(check.compared() > 0, !is_outside);
  });
}

TEST(CheckReplicas, ComparesShapesOfMetaTensors) {
  run_ranks(kRanks, [] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks}, {"tp"});
    Echo echo;
    CheckReplicas check(*echo, mesh);
    const auto compare = [&](int64_t size) {
      return error_of(
          [&] { check.compare(at::empty({size}, at::kMeta), mesh, "x"); });
    };
    EXPECT_EQ(compare(2), "");
    EXPECT_NE(
        compare(2 + get_rank()).find("f32[2] on rank 0; f32[3] on rank 1"),
        std::string::npos)
        << compare(2 + get_rank());
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
