// SPDX-License-Identifier: BSD-3-Clause
// ColwiseParallel and RowwiseParallel compared with the plain module, for every
// combination of layouts, local and distributed inputs and outputs.
#include <dtensor/layout/text.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

struct Case {
  Placement input = Replicate();
  Placement output = Replicate();
  bool bias = true;
  bool local_output = true;
  bool dtensor_input = false;
  std::vector<int64_t> sizes;
  int64_t out_features = 7;

  std::string text(const std::string& style, int64_t ranks) const {
    return c10::str(
        style,
        " ",
        to_string(input),
        " -> ",
        to_string(output),
        bias ? "" : " without bias",
        local_output ? "" : " DTensor output",
        dtensor_input ? " DTensor input" : "",
        " ",
        sizes,
        " on ",
        ranks);
  }
};

using Style = std::function<std::shared_ptr<ParallelStyle>(const Case&)>;

std::shared_ptr<ParallelStyle> colwise(const Case& c) {
  return std::make_shared<ColwiseParallel>(
      ColwiseOptions{c.input, c.output, c.local_output});
}

std::shared_ptr<ParallelStyle> rowwise(const Case& c) {
  return std::make_shared<RowwiseParallel>(
      RowwiseOptions{c.input, c.output, c.local_output});
}

at::Tensor
input_of(const at::Tensor& whole, const DeviceMesh& mesh, const Case& c) {
  at::Tensor x = c.dtensor_input
      ? distribute_tensor(whole.detach(), mesh, {c.input}, std::nullopt)
      : part(whole, mesh, c.input);
  return x.requires_grad_(true);
}

// Computes the gradients of sum(output * weight), summed over ranks.
void backward(
    const at::Tensor& y,
    const at::Tensor& weight,
    const DeviceMesh& mesh,
    const Case& c) {
  y.backward(
      c.local_output
          ? part(weight, mesh, c.output)
          : distribute_tensor(weight, mesh, {c.output}, std::nullopt));
}

template <class Make>
void expect_like_plain(
    const Make& make,
    const at::Tensor& whole,
    const DeviceMesh& mesh,
    const Case& c,
    const ParallelStyle& style,
    const std::string& what) {
  const bool differentiable = whole.is_floating_point();
  auto plain = make();
  const auto x = differentiable ? whole.detach().requires_grad_(true) : whole;
  const auto truth = plain->forward(x);
  const auto weight = uniform(truth.sizes(), 99);
  truth.backward(weight);

  auto mine = make();
  parallelize_module(*mine, mesh, style);
  const auto input =
      differentiable ? input_of(whole, mesh, c) : part(whole, mesh, c.input);
  const auto y = mine->forward(input);
  ASSERT_EQ(is_dtensor(y), !c.local_output) << what;
  if (c.local_output) {
    expect_close(y, part(truth, mesh, c.output), what);
  } else {
    expect_close(y, truth, what);
    EXPECT_EQ(
        layout_of(y),
        c.output.is_sharded()
            ? c.output.with_dim((c.output.dim() + y.dim()) % y.dim())
            : c.output)
        << what;
  }
  backward(y, weight, mesh, c);
  expect_same_gradients(*mine, *plain, what);
  if (differentiable) {
    expect_close(
        input.grad(),
        c.dtensor_input ? x.grad() : part(x.grad(), mesh, c.input),
        what + ": gradient of the input");
  }
}

std::vector<Placement> layouts(int64_t dims) {
  std::vector<Placement> all = {Replicate(), Shard(0), Shard(-1)};
  if (dims > 2) {
    all.push_back(Shard(1));
  }
  return all;
}

template <class Run>
void for_each_case(const std::vector<int64_t>& sizes, const Run& run) {
  for (const auto& input : layouts(static_cast<int64_t>(sizes.size()))) {
    for (const auto& output : layouts(static_cast<int64_t>(sizes.size()))) {
      for (int bits = 0; bits < 8; ++bits) {
        run(Case{
            input,
            output,
            (bits & 1) != 0,
            (bits & 2) != 0,
            (bits & 4) != 0,
            sizes});
      }
    }
  }
}

void expect_linear_like_plain(
    const std::string& name,
    const Style& style,
    const std::vector<int64_t>& sizes) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for_each_case(sizes, [&](const Case& c) {
        const auto make = [&] {
          return filled(torch::nn::Linear(
              torch::nn::LinearOptions(sizes.back(), 7).bias(c.bias)));
        };
        const auto what = c.text(name, ranks);
        const auto error = error_of([&] {
          expect_like_plain(make, uniform(sizes, 7), mesh, c, *style(c), what);
        });
        EXPECT_EQ(error, "") << what;
      });
    });
  }
}

// 5 and 7 features are divisible by neither 2 nor 3.
TEST(ColwiseParallelTest, LinearOfTwoDimensionsIsThePlainOne) {
  expect_linear_like_plain("colwise", colwise, {6, 5});
}

TEST(ColwiseParallelTest, LinearOfThreeDimensionsIsThePlainOne) {
  expect_linear_like_plain("colwise", colwise, {6, 6, 5});
}

TEST(RowwiseParallelTest, LinearOfTwoDimensionsIsThePlainOne) {
  expect_linear_like_plain("rowwise", rowwise, {6, 5});
}

TEST(RowwiseParallelTest, LinearOfThreeDimensionsIsThePlainOne) {
  expect_linear_like_plain("rowwise", rowwise, {6, 6, 5});
}

TEST(LinearStylesTest, FewerFeaturesThanRanks) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    const Case c{.sizes = {2, 2}, .out_features = 2};
    const auto make = [] { return filled(torch::nn::Linear(2, 2)); };
    auto sharded = c;
    sharded.output = Shard(-1);
    expect_like_plain(
        make, uniform({2, 2}, 7), mesh, sharded, *colwise(sharded), "colwise");
    sharded = c;
    sharded.input = Shard(-1);
    expect_like_plain(
        make, uniform({2, 2}, 7), mesh, sharded, *rowwise(sharded), "rowwise");
  });
}

// A Partial output contains the bias once when it is reduced.
TEST(RowwiseParallelTest, PartialOutputHasTheBiasOnce) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    for (const bool flat : {false, true}) {
      for (const bool local : {false, true}) {
        auto plain = filled(torch::nn::Linear(6, 4));
        auto mine = filled(torch::nn::Linear(6, 4));
        parallelize_module(
            *mine,
            mesh,
            RowwiseParallel(
                {.output_layouts = Partial(), .use_local_output = local}));
        const auto x = flat ? uniform({4, 6}, 3) : uniform({2, 4, 6}, 3);
        const auto truth = plain(x);
        truth.sum().backward();
        const auto y = mine(part(x, mesh, Shard(-1)));
        ASSERT_EQ(is_dtensor(y), !local);
        const DTensor sum(
            local ? at::Tensor(DTensor::from_local(y, mesh, {Partial()})) : y);
        EXPECT_EQ(sum.placements()[0], Partial());
        expect_close(sum, truth, "the sum");
        sum.full_tensor().sum().backward();
        expect_same_gradients(*mine, *plain, "partial");
      }
    }
  });
}

at::Tensor indices(at::IntArrayRef sizes, int64_t rows) {
  auto generator = at::detail::createCPUGenerator(3);
  return at::randint(rows, sizes, generator, at::kLong);
}

TEST(LinearStylesTest, EmbeddingIsThePlainOne) {
  const std::vector<std::pair<std::string, Style>> styles = {
      {"colwise", colwise}, {"rowwise", rowwise}};
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const auto& [name, style] : styles) {
        for (const auto& output : layouts(3)) {
          for (const bool local : {false, true}) {
            const Case c{
                .output = output, .local_output = local, .sizes = {6, 6}};
            const auto what = "embedding " + c.text(name, ranks);
            const auto error = error_of([&, &apply = style] {
              expect_like_plain(
                  [] { return filled(torch::nn::Embedding(11, 5)); },
                  indices({6, 6}, 11),
                  mesh,
                  c,
                  *apply(c),
                  what);
            });
            EXPECT_EQ(error, "") << what;
          }
        }
      }
    });
  }
}

TEST(LinearStylesTest, SourceRankDecidesTheValues) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto own = static_cast<uint64_t>(rank) + 1;
    const auto weight = [&](std::optional<int64_t> source) {
      auto linear = filled(torch::nn::Linear(4, 4), own);
      parallelize_module(
          *linear, mesh, ColwiseParallel(), {.src_data_rank = source});
      return full(linear->weight);
    };
    const auto of = [](uint64_t seed) { return uniform({4, 4}, seed); };
    expect_close(weight(0), of(1), "rank 0");
    expect_close(weight(1), of(2), "rank 1");
    expect_close(
        weight(std::nullopt),
        at::cat({of(1).narrow(0, 0, 2), of(2).narrow(0, 2, 2)}),
        "its own");
  });
}

// A plain input with the wrong number of features is an error at once.
TEST(LinearStylesTest, WrongFeaturesAreAnError) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto linear = filled(torch::nn::Linear(6, 4));
    parallelize_module(*linear, mesh, RowwiseParallel());
    const auto error = error_of([&] {
      linear(torch::ones({2, 4}, torch::kDouble));
    });
    EXPECT_EQ(
        error,
        "[boundary] the input of the root module, f64[2, 4], has 4 features, "
        "but this rank's local tensor of 6 features in S(-1) should have 3. "
        "Set "
        "output_layouts of the preceding module to input_layouts of this "
        "module.");
  });
}

// A plain local shard with an uneven size along another dimension does not
// determine the global size.
TEST(LinearStylesTest, UnevenPlainSequencesAreAnError) {
  std::string error;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    torch::nn::Linear linear(8, 8);
    parallelize_module(
        *linear, mesh, ColwiseParallel({.input_layouts = Shard(1)}));
    const auto mine = error_of([&] { linear(torch::ones({2, 3 - rank, 8})); });
    if (rank == 0) {
      error = mine;
    }
  });
  EXPECT_EQ(
      error,
      "[from_local] ranks of \"tp\" disagree about a tensor made without a "
      "global shape: rank 0 makes f32[2, 6, 8] in S(1) from its f32[2, 3, 8]; "
      "rank 1 makes f32[2, 4, 8] in S(1) from its f32[2, 2, 8]. Pass the "
      "global shape to from_local on every rank.");
}

TEST(LinearStylesTest, UnevenPlainSequencesNameTheModule) {
  std::string error;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    Mlp mlp(8, 8);
    parallelize_module(
        *mlp, mesh, {{"w1", ColwiseParallel({.input_layouts = Shard(1)})}});
    const auto mine = error_of([&] { mlp->w1(torch::ones({2, 3 - rank, 8})); });
    if (rank == 0) {
      error = mine;
    }
  });
  EXPECT_EQ(
      error,
      "[from_local] ranks of \"tp\" disagree about a tensor made without a "
      "global shape: rank 0 makes f32[2, 6, 8] in S(1) from its f32[2, 3, 8]; "
      "rank 1 makes f32[2, 4, 8] in S(1) from its f32[2, 2, 8]. Shards of "
      "different sizes passed to module \"w1\" must be DTensors: set "
      "use_local_output = false on the module that returns them, or pass the "
      "global shape to from_local on every rank.");
}

TEST(LinearStylesTest, InputsWithOtherFeaturesNameTheModule) {
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto error = [&](const ParallelStyle& first,
                           const ParallelizePlanEntry& second) {
      Mlp mlp(8, 15);
      parallelize_module(*mlp->w1, mesh, first);
      parallelize_module(*mlp, mesh, {second});
      return error_of([&] { mlp(torch::ones({4, 8})); });
    };
    EXPECT_EQ(
        error(ColwiseParallel(), {"w2", ColwiseParallel()}),
        c10::str(
            "[boundary] the input of module \"w2\", f32[4, ",
            8 - rank,
            "], has ",
            8 - rank,
            " features, but this rank's local tensor of 15 features in R "
            "should have 15. Set "
            "output_layouts of the preceding module to input_layouts of this "
            "module."));
    EXPECT_EQ(
        error(
            ColwiseParallel({.output_layouts = Replicate()}),
            {"w2", RowwiseParallel()}),
        c10::str(
            "[boundary] the input of module \"w2\", f32[4, 15], has 15 "
            "features, but this rank's local tensor of 15 features in S(-1) "
            "should have ",
            8 - rank,
            ". Set output_layouts of the preceding module to input_layouts of "
            "this module."));
  });
}

TEST(LinearStylesTest, AnEmbeddingUnderRowwiseParallelTakesReplicatedIds) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto plain = filled(torch::nn::Embedding(11, 8));
    auto mine = filled(torch::nn::Embedding(11, 8));
    parallelize_module(*mine, mesh, RowwiseParallel());
    const auto ids = at::arange(6, at::kLong).view({2, 3});
    const auto y = mine(ids);
    expect_close(y, plain(ids), "output");
    y.sum().backward();
    plain(ids).sum().backward();
    expect_same_gradients(*mine, *plain, "embedding");
  });
}

TEST(LinearStylesTest, InputsOnAnotherMeshAreAnError) {
  run_ranks(2, [] {
    const auto tp = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto dp = init_device_mesh(at::kCPU, {2}, {"dp"});
    Mlp mlp(8, 8);
    parallelize_module(*mlp, tp, mlp_plan());
    const at::Tensor x =
        DTensor::from_local(torch::ones({2, 8}), dp, {Replicate()});
    EXPECT_EQ(
        error_of([&] { mlp(x); }),
        "[boundary] the input of module \"w1\" is f32[2, 8] on (dp=2): R, but "
        "the module is parallelized on (tp=2). Redistribute the input onto "
        "that mesh.");
  });
}

// The cache of the last plain input handles changing inputs.
TEST(Linears, TakeUnlikeInputsInTurn) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const std::vector<at::Tensor> inputs = {
        uniform({4, 6}, 1),
        uniform({4, 6}, 2),
        uniform({5, 6}, 3),
        uniform({6, 4}, 4).t(),
        uniform({4, 6}, 5),
        uniform({2, 3, 6}, 6),
        uniform({4, 6}, 7)};
    const auto make = [] { return filled(torch::nn::Linear(6, 8)); };
    for (const bool is_colwise : {true, false}) {
      auto plain = make();
      auto mine = make();
      const Placement layout = is_colwise ? Replicate() : Shard(-1);
      if (is_colwise) {
        parallelize_module(*mine, mesh, ColwiseParallel({layout, Replicate()}));
      } else {
        parallelize_module(*mine, mesh, RowwiseParallel({layout}));
      }
      for (size_t i = 0; i < 3 * inputs.size(); ++i) {
        const auto& whole = inputs[i % inputs.size()];
        const auto what = c10::str("input ", i);
        const auto truth = plain->forward(whole);
        const bool records = i % 3 != 0;
        const torch::AutoGradMode mode(records);
        const auto x = i % 5 == 4
            ? at::Tensor(distribute_tensor(whole, mesh, {layout}))
            : is_colwise
            ? whole
            : whole.chunk(2, -1)[static_cast<size_t>(mesh.get_local_rank())];
        const auto y = mine->forward(x);
        expect_close(y, truth.detach(), what);
        if (records) {
          truth.square().sum().backward();
          y.square().sum().backward();
          expect_same_gradients(*mine, *plain, what);
        }
      }
    }
  });
}

// Inputs keep their batch sharding along the other dimension of a root mesh.
TEST(RootMesh, KeepsShardsAlongOtherDimensions) {
  run_ranks(6, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3, 2}, {"dp", "tp"});
    const auto whole = uniform({4, 6}, 3);
    auto plain = filled(Mlp(6, 8));
    const auto truth = plain->forward(whole);
    truth.square().sum().backward();
    auto module = filled(Mlp(6, 8));
    parallelize_module(
        *module,
        mesh["tp"],
        mlp_plan(),
        {.keep_dtensors = true, .root_mesh = mesh});
    EXPECT_EQ(to_string(DTensor(module->w1->weight).placements()), "R S(0)");
    const auto x = distribute_tensor(whole, mesh, {Shard(0), Replicate()});
    CommDebugMode comm;
    const auto y = module->forward(x);
    EXPECT_EQ(comm.get_total_counts(), 1);
    EXPECT_EQ(to_string(DTensor(y).placements()), "S(0) R");
    expect_close(y, truth, "output");
    DTensor(y.square().sum()).backward();
    expect_same_gradients(*module, *plain, "gradients", 1e-10);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
