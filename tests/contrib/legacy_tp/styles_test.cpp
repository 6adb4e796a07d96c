// SPDX-License-Identifier: BSD-3-Clause
// Styles of PyTorch 2.0 compared with the plain module: values, gradients,
// communication and errors.
#include <dtensor/contrib/legacy_tp/torch_2_0.h>
#include <dtensor/layout/text.h>
#include <tests/comm/expect_error.h>
#include <tests/parallel/comm_counts.h>
#include <tests/parallel/modules.h>

#include <functional>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
namespace tp = dtensor::torch_2_0;

// `widths.size() - 1` Linears with gelu in between, children of one module.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(const std::vector<int64_t>& widths) {
    for (size_t i = 1; i < widths.size(); ++i) {
      linears.push_back(register_module(
          "l" + std::to_string(i - 1),
          torch::nn::Linear(widths[i - 1], widths[i])));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = linears[0](x);
    for (size_t i = 1; i < linears.size(); ++i) {
      y = linears[i](torch::gelu(y));
    }
    return y;
  }
  std::vector<torch::nn::Linear> linears;
};
TORCH_MODULE(Stack);

// Two MLPs and a single Linear, which PairwiseParallel leaves unchanged.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", Mlp(6, 8))),
        rest(register_module(
            "rest",
            torch::nn::Sequential(Stack(std::vector<int64_t>{6, 7, 6})))),
        head(register_module("head", torch::nn::Linear(6, 3))) {}
  at::Tensor forward(const at::Tensor& x) {
    return head(rest->forward(first(x)));
  }
  Mlp first;
  torch::nn::Sequential rest;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

template <class Fn>
void on_ranks(const Fn& fn) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] { fn(init_device_mesh(at::kCPU, {ranks}, {"tp"})); });
  }
}

struct Run {
  std::string what;
  Placement layout = Replicate(); // of plain input and output
  bool plain_output = true;
  std::string forward = "1 all_reduce";
  std::string backward = "1 all_reduce";
};

// Compares `mine`, which is parallelized, with `plain`, with equal parameters.
template <class Module>
void expect_like_plain(
    Module& mine,
    Module& plain,
    const at::Tensor& whole,
    const DeviceMesh& mesh,
    const Run& run) {
  const auto leaf = whole.clone().requires_grad_(true);
  const auto truth = plain->forward(leaf);
  const auto weight = uniform(truth.sizes(), 99);
  truth.backward(weight);

  const auto x = part(whole, mesh, run.layout).requires_grad_(true);
  const auto gradient = run.plain_output
      ? part(weight, mesh, run.layout)
      : distribute_tensor(weight, mesh, {run.layout}, std::nullopt);
  const CommDebugMode comm;
  const auto y = mine->forward(x);
  y.backward(gradient);
  const bool alone = mesh.size() == 1;
  EXPECT_EQ(counts(comm, false), alone ? "" : run.forward) << run.what << comm;
  EXPECT_EQ(counts(comm, true), alone ? "" : run.backward) << run.what << comm;
  ASSERT_EQ(is_dtensor(y), !run.plain_output) << run.what;
  expect_close(
      y, run.plain_output ? part(truth, mesh, run.layout) : truth, run.what);
  expect_close(
      x.grad(),
      part(leaf.grad(), mesh, run.layout),
      run.what + ": gradient of the input");
  expect_same_gradients(*mine, *plain, run.what);
}

std::vector<std::string> layouts_of(const torch::nn::Module& module) {
  std::vector<std::string> all;
  for (const auto& item : module.named_parameters()) {
    const auto& p = item.value();
    all.push_back(
        item.key() + " " +
        (is_dtensor(p) ? to_string(layout_of(p)) : std::string("plain")));
  }
  return all;
}

using Names = std::vector<std::string>;

// 5 and 7 features are divisible by neither 2 nor 3.
TEST(Torch20PairwiseTest, AnMlpIsThePlainOne) {
  on_ranks([](const DeviceMesh& mesh) {
    for (const bool bias : {true, false}) {
      for (const auto& sizes : {std::vector<int64_t>{4, 5}, {2, 3, 5}}) {
        auto plain = filled(Mlp(5, 7, bias));
        auto mine = filled(Mlp(5, 7, bias));
        tp::parallelize_module(*mine, mesh, tp::PairwiseParallel());
        expect_like_plain(
            mine, plain, uniform(sizes, 3), mesh, {c10::str("mlp ", sizes)});
      }
    }
  });
}

TEST(Torch20PairwiseTest, LinearsAreStyledInTurnsAndAnOddOneIsLeft) {
  on_ranks([](const DeviceMesh& mesh) {
    auto three = filled(Stack(std::vector<int64_t>{5, 7, 4, 3}));
    tp::parallelize_module(*three, mesh, tp::PairwiseParallel());
    EXPECT_EQ(
        layouts_of(*three),
        (Names{
            "l0.weight S(0)",
            "l0.bias S(0)",
            "l1.weight S(1)",
            "l1.bias R",
            "l2.weight plain",
            "l2.bias plain"}));
    auto plain = filled(Stack(std::vector<int64_t>{5, 7, 4, 3}));
    expect_like_plain(three, plain, uniform({4, 5}, 3), mesh, {"three"});

    auto four = filled(Stack(std::vector<int64_t>{5, 7, 4, 7, 2}));
    auto plain_four = filled(Stack(std::vector<int64_t>{5, 7, 4, 7, 2}));
    tp::parallelize_module(*four, mesh, tp::PairwiseParallel());
    expect_like_plain(
        four,
        plain_four,
        uniform({2, 3, 5}, 3),
        mesh,
        {.what = "four",
         .forward = "2 all_reduce",
         .backward = "2 all_reduce"});
  });
}

TEST(Torch20PairwiseTest, OtherModulesAreSearched) {
  on_ranks([](const DeviceMesh& mesh) {
    auto plain = filled(Net());
    auto mine = filled(Net());
    tp::parallelize_module(*mine, mesh, tp::PairwiseParallel());
    EXPECT_EQ(
        layouts_of(*mine),
        (Names{
            "first.w1.weight S(0)",
            "first.w1.bias S(0)",
            "first.w2.weight S(1)",
            "first.w2.bias R",
            "rest.0.l0.weight S(0)",
            "rest.0.l0.bias S(0)",
            "rest.0.l1.weight S(1)",
            "rest.0.l1.bias R",
            "head.weight plain",
            "head.bias plain"}));
    expect_like_plain(
        mine,
        plain,
        uniform({4, 6}, 3),
        mesh,
        {.what = "net", .forward = "2 all_reduce", .backward = "2 all_reduce"});
  });
}

// Operators between the Linears compute on global values: softmax needs all
// features.
TEST(Torch20PairwiseTest, ModulesInBetweenGetFullTensors) {
  struct Model : torch::nn::Module {
    Model() {
      register_module("w1", w1);
      register_module("w2", w2);
    }
    at::Tensor forward(const at::Tensor& x) {
      return w2(torch::softmax(w1(x), -1));
    }
    torch::nn::Linear w1{5, 7}, w2{7, 5};
  };
  on_ranks([](const DeviceMesh& mesh) {
    auto plain = filled(std::make_shared<Model>());
    auto mine = filled(std::make_shared<Model>());
    tp::parallelize_module(*mine, mesh, tp::PairwiseParallel());
    expect_like_plain(
        mine,
        plain,
        uniform({4, 5}, 3),
        mesh,
        {.what = "softmax",
         .forward = "1 all_reduce, 2 all_to_all",
         .backward = "1 all_reduce, 2 all_to_all"});
  });
}

// Two Linears that both use the module's input give the plain result.
TEST(Torch20PairwiseTest, EveryLinearMayTakeTheInput) {
  struct Model : torch::nn::Module {
    Model() {
      register_module("w1", w1);
      register_module("w2", w2);
    }
    at::Tensor forward(const at::Tensor& x) {
      return w1(x) * w2(x);
    }
    torch::nn::Linear w1{4, 6}, w2{4, 6};
  };
  on_ranks([](const DeviceMesh& mesh) {
    auto plain = filled(std::make_shared<Model>());
    auto mine = filled(std::make_shared<Model>());
    tp::parallelize_module(
        *mine, mesh, tp::PairwiseParallel({.use_local_output = false}));
    const auto x = uniform({3, 4}, 3);
    expect_close(mine->forward(x), plain->forward(x), "product");
  });
}

TEST(Torch20PairwiseTest, SharedModulesAreStyledOnce) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto make = [] {
      auto mlp = filled(Mlp(6, 8));
      return torch::nn::Sequential(mlp, torch::nn::GELU(), mlp);
    };
    auto plain = make();
    auto mine = make();
    tp::parallelize_module(*mine, mesh, tp::PairwiseParallel());
    expect_like_plain(
        mine,
        plain,
        uniform({4, 6}, 3),
        mesh,
        {.what = "shared",
         .forward = "2 all_reduce",
         .backward = "2 all_reduce"});
  });
}

TEST(Torch20SequenceParallelTest, AnMlpIsThePlainOne) {
  on_ranks([](const DeviceMesh& mesh) {
    for (const auto& sizes : {std::vector<int64_t>{6, 5}, {6, 3, 5}}) {
      auto plain = filled(Mlp(5, 7));
      auto mine = filled(Mlp(5, 7));
      tp::parallelize_module(*mine, mesh, tp::SequenceParallel());
      expect_like_plain(
          mine,
          plain,
          uniform(sizes, 3),
          mesh,
          {.what = c10::str("sequence ", sizes),
           .layout = Shard(0),
           .forward = "1 all_gather, 1 reduce_scatter",
           .backward = "1 all_gather, 1 reduce_scatter"});
    }
  });
}

// torch::nn::Linear adds the bias to a gathered 3-D output, so the bias is
// gathered too.
TEST(Torch20LinearTest, ColumnsAreGathered) {
  on_ranks([](const DeviceMesh& mesh) {
    for (const auto& sizes : {std::vector<int64_t>{4, 5}, {2, 3, 5}}) {
      auto plain = filled(torch::nn::Linear(5, 7));
      auto mine = filled(torch::nn::Linear(5, 7));
      tp::parallelize_module(*mine, mesh, tp::ColwiseParallel());
      EXPECT_EQ(layouts_of(*mine), (Names{"weight S(0)", "bias S(0)"}));
      const bool is_flat = sizes.size() == 2;
      expect_like_plain(
          mine,
          plain,
          uniform(sizes, 3),
          mesh,
          {.what = c10::str("columns ", sizes),
           .plain_output = false,
           .forward = is_flat ? "1 all_gather" : "2 all_gather"});
      EXPECT_EQ(layout_of(mine(uniform(sizes, 3))), Replicate());
    }
  });
}

TEST(Torch20LinearTest, RowsAreReduced) {
  on_ranks([](const DeviceMesh& mesh) {
    for (const auto& sizes : {std::vector<int64_t>{4, 5}, {2, 3, 5}}) {
      auto plain = filled(torch::nn::Linear(5, 7));
      auto mine = filled(torch::nn::Linear(5, 7));
      tp::parallelize_module(*mine, mesh, tp::RowwiseParallel());
      EXPECT_EQ(layouts_of(*mine), (Names{"weight S(1)", "bias R"}));
      const auto whole = uniform(sizes, 3);
      const auto leaf = whole.clone().requires_grad_(true);
      const auto x = part(whole, mesh, Shard(-1)).requires_grad_(true);
      const CommDebugMode comm;
      const auto y = mine(x);
      DTensor(y).to_local().sum().backward();
      plain(leaf).sum().backward();
      EXPECT_EQ(counts(comm, false), mesh.size() == 1 ? "" : "1 all_reduce");
      EXPECT_EQ(counts(comm, true), "");
      EXPECT_EQ(layout_of(y), Replicate());
      expect_close(y, plain(whole), "rows");
      expect_close(x.grad(), part(leaf.grad(), mesh, Shard(-1)), "gradient");
      expect_same_gradients(*mine, *plain, "rows");
    }
  });
}

TEST(Torch20LinearTest, LayoutsStandForTheFunctions) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto plain = filled(torch::nn::Linear(6, 8));
    const auto x = uniform({4, 6}, 3);
    const auto run = [&](const ParallelStyle& style, const at::Tensor& input) {
      auto mine = filled(torch::nn::Linear(6, 8));
      tp::parallelize_module(*mine, mesh, style);
      return mine(input);
    };
    const tp::ColwiseParallel columns(
        {.input_layouts = Shard(0),
         .output_layouts = Shard(-1),
         .use_local_output = true});
    expect_close(
        run(columns, part(x, mesh, Shard(0))),
        part(plain(x), mesh, Shard(-1)),
        "columns");
    const tp::RowwiseParallel rows(
        {.input_layouts = Replicate(),
         .output_layouts = Shard(0),
         .use_local_output = true});
    expect_close(run(rows, x), part(plain(x), mesh, Shard(0)), "rows");
  });
}

TEST(Torch20LinearTest, AnEmbeddingIsThePlainOne) {
  on_ranks([](const DeviceMesh& mesh) {
    const auto ids = at::arange(6, at::kLong).view({2, 3});
    auto plain = filled(torch::nn::Embedding(11, 5));
    for (const bool rows : {false, true}) {
      auto mine = filled(torch::nn::Embedding(11, 5));
      if (rows) {
        tp::parallelize_module(*mine, mesh, tp::RowwiseParallel());
      } else {
        tp::parallelize_module(*mine, mesh, tp::ColwiseParallel());
      }
      EXPECT_EQ(layout_of(mine->weight), Shard(rows ? 0 : 1));
      const auto y = mine(ids);
      EXPECT_EQ(layout_of(y), Replicate());
      expect_close(y, plain(ids), "embedding");
    }
  });
}

// Rows of the mesh are ranks 0, 1 and 2, 3.
TEST(Torch20ParallelizeModuleTest, RunsAlongOneDimensionOfAMesh) {
  for (const bool named : {true, false}) {
    run_ranks(4, [&](int64_t rank) {
      const auto mesh = named ? init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"})
                              : init_device_mesh(at::kCPU, {2, 2});
      for (const int64_t dim : {0, 1}) {
        auto plain = filled(Mlp(5, 7));
        auto mine = filled(Mlp(5, 7));
        tp::parallelize_module(*mine, mesh, tp::PairwiseParallel(), dim);
        const auto along = DTensor(mine->w1->weight).device_mesh();
        const auto expected = dim == 0
            ? std::vector<int64_t>{rank % 2, rank % 2 + 2}
            : std::vector<int64_t>{rank / 2 * 2, rank / 2 * 2 + 1};
        EXPECT_EQ(along.ranks(), expected);
        if (named) {
          EXPECT_EQ(along, mesh[dim == 0 ? "dp" : "tp"]);
        }
        // Every rank along the other dimension has its own batch.
        const auto batch = dim == 0 ? rank % 2 : rank / 2;
        expect_like_plain(
            mine,
            plain,
            uniform({4, 5}, static_cast<uint64_t>(batch)),
            along,
            {c10::str("dimension ", dim)});
      }
    });
  }
}

TEST(Torch20ParallelizeModuleTest, PlansNameModules) {
  on_ranks([](const DeviceMesh& mesh) {
    auto plain = filled(Net());
    auto mine = filled(Net());
    tp::parallelize_module(
        *mine,
        mesh,
        {{"first", tp::PairwiseParallel()},
         {"rest.0.l0", tp::ColwiseParallel({.output_layouts = Shard(-1)})},
         {"rest.0.l1", RowwiseParallel()}}); // the current style
    expect_like_plain(
        mine,
        plain,
        uniform({4, 6}, 3),
        mesh,
        {.what = "net", .forward = "2 all_reduce", .backward = "2 all_reduce"});
    auto whole = filled(Mlp(6, 8));
    tp::parallelize_module(*whole, mesh, {{"", tp::PairwiseParallel()}});
    EXPECT_TRUE(is_dtensor(whole->w1->weight));
  });
}

TEST(Torch20ParallelizeModuleTest, StylesMayStandInPlansOfToday) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto plain = filled(Net());
    auto mine = filled(Net());
    dtensor::parallelize_module(
        *mine, mesh, {{"[fr]*st", tp::PairwiseParallel()}});
    expect_like_plain(
        mine,
        plain,
        uniform({4, 6}, 3),
        mesh,
        {.what = "net", .forward = "2 all_reduce", .backward = "2 all_reduce"});
  });
}

TEST(Torch20ParallelizeModuleTest, TrainsLikeThePlainOne) {
  on_ranks([](const DeviceMesh& mesh) {
    auto plain = filled(Net());
    auto mine = filled(Net());
    tp::parallelize_module(*mine, mesh, tp::PairwiseParallel());
    torch::optim::Adam of_plain(plain->parameters(), 0.01);
    torch::optim::Adam of_mine(mine->parameters(), 0.01);
    train(plain, of_plain);
    train(mine, of_mine);
    expect_same_parameters(*mine, *plain);
  });
}

template <class Error>
std::string error_of_plan(const ParallelizePlan& plan) {
  const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
  Net net;
  auto error =
      test::error_of<Error>([&] { tp::parallelize_module(*net, mesh, plan); });
  for (const auto& parameter : net->parameters()) {
    EXPECT_FALSE(is_dtensor(parameter)) << error;
  }
  return error;
}

TEST(Torch20ParallelizeModuleTest, UnknownNamesListKnownNames) {
  const auto error = [](const std::string& name) {
    return error_of_plan<c10::ValueError>(
        {{"first", tp::PairwiseParallel()}, {name, tp::ColwiseParallel()}});
  };
  const std::string end =
      ". Use full names; only dtensor::parallelize_module accepts patterns.";
  const std::string start = "[torch_2_0::parallelize_module] there is no ";
  EXPECT_EQ(
      error("first.w3"),
      start + "module \"first.w3\". Names at that level: w1, w2" + end);
  EXPECT_EQ(
      error("*"),
      start + "module \"*\". Names at that level: first, rest, head" + end);
  EXPECT_EQ(
      error("second.w1"),
      start + "module \"second.w1\". Names at that level: first, rest, head" +
          end);
  EXPECT_EQ(
      error("head.x"),
      start + "module \"head.x\". There are no names at that level" + end);
  EXPECT_EQ(
      error("head."),
      start + "module \"head.\". There are no names at that level" + end);
}

TEST(Torch20ParallelizeModuleTest, EveryNameHasAStyle) {
  const std::shared_ptr<const ParallelStyle> none;
  EXPECT_EQ(
      error_of_plan<c10::Error>(
          {{"first", tp::PairwiseParallel()}, {"head", none}}),
      "[torch_2_0::parallelize_module] the plan has no style for \"head\". "
      "Add a style, such as PairwiseParallel().");
}

TEST(Torch20ParallelizeModuleTest, TheMeshHasTheDimension) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"});
    Mlp mlp(4, 8);
    const auto error = [&](const DeviceMesh& on, int64_t dim) {
      return test::error_of<c10::IndexError>([&] {
        tp::parallelize_module(*mlp, on, tp::PairwiseParallel(), dim);
      });
    };
    EXPECT_EQ(
        error(mesh, 2),
        "[torch_2_0::parallelize_module] no mesh dimension 2: the mesh is "
        "(dp=1, tp=2). Pass a tp_mesh_dim from 0 to 1.");
    EXPECT_EQ(
        error(mesh, -1),
        "[torch_2_0::parallelize_module] no mesh dimension -1: the mesh is "
        "(dp=1, tp=2). Pass a tp_mesh_dim from 0 to 1.");
    EXPECT_EQ(
        error(mesh["tp"], 1),
        "[torch_2_0::parallelize_module] no mesh dimension 1: the mesh is "
        "(tp=2). Pass a tp_mesh_dim from 0 to 0.");
    EXPECT_EQ(
        test::error_of<c10::ValueError>([&] {
          tp::parallelize_module(*mlp, DeviceMesh(), tp::PairwiseParallel());
        }),
        "[torch_2_0::parallelize_module] the mesh is undefined. Use "
        "init_device_mesh.");
  });
}

TEST(Torch20ParallelizeModuleTest, StylesRejectUnsupportedModules) {
  EXPECT_EQ(
      error_of_plan<c10::Error>({{"first", tp::ColwiseParallel()}}),
      "[ColwiseParallel] cannot style module \"first\" of type "
      "dtensor::test_modules::MlpImpl: only torch::nn::Linear and "
      "torch::nn::Embedding are supported. Style its children instead, or use "
      "PairwiseParallel.");
  EXPECT_EQ(
      error_of_plan<c10::Error>({{"rest", tp::RowwiseParallel()}}),
      "[RowwiseParallel] cannot style module \"rest\" of type "
      "torch::nn::SequentialImpl: only torch::nn::Linear and "
      "torch::nn::Embedding are supported. Style its children instead, or use "
      "PairwiseParallel.");
  EXPECT_EQ(
      error_of_plan<c10::NotImplementedError>({{"first", ColwiseParallel()}}),
      "[ColwiseParallel] cannot style module \"first\" of type "
      "dtensor::test_modules::MlpImpl: only torch::nn::Linear, "
      "Embedding, Conv1d to 3d and ConvTranspose1d to 3d are supported. Style "
      "its children instead.");
  EXPECT_EQ(
      error_of_plan<c10::Error>(
          {{"first", tp::PairwiseParallel()},
           {"head", tp::PairwiseParallel()}}),
      "[PairwiseParallel] module \"head\" of type torch::nn::LinearImpl has "
      "nothing to pair: a pair is two torch::nn::Linear children of one "
      "module. Use ColwiseParallel or RowwiseParallel for a single Linear.");
}

TEST(Torch20ParallelizeModuleTest, TorchsAttentionIsStyledInPlace) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto make = [] {
      return filled(torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(8, 4)
              .dim_feedforward(6)
              .dropout(0)));
    };
    auto plain = make();
    auto layer = make();
    tp::parallelize_module(
        *layer, mesh, {{"self_attn", tp::PairwiseParallel()}});
    EXPECT_TRUE(is_dtensor(layer->self_attn->in_proj_weight));
    const auto x = uniform({5, 2, 8}, 1);
    const auto y = layer->forward(x);
    const auto truth = plain->forward(x);
    expect_close(y, truth, "encoder layer");
    y.square().sum().backward();
    truth.square().sum().backward();
    expect_same_gradients(*layer, *plain, "encoder layer", 1e-11);
  });
}

TEST(Torch20ParallelizeModuleTest, TorchsAttentionReadsTheSizesOfItsInputs) {
  const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
  torch::nn::ModuleDict model;
  model->update({{"mlp", Mlp(4, 8).ptr()}});
  model->update({{"attn", torch::nn::MultiheadAttention(4, 2).ptr()}});
  EXPECT_EQ(
      test::error_of<c10::NotImplementedError>([&] {
        tp::parallelize_module(*model, mesh, tp::SequenceParallel());
      }),
      "[PairwiseParallel] module \"attn\" of type "
      "torch::nn::MultiheadAttention reads the sizes of its inputs, which are "
      "sharded, S(0). Use torch_2_0::TensorParallelMultiheadAttention, which "
      "can copy() it.");
  for (const auto& parameter : model->parameters()) {
    EXPECT_FALSE(is_dtensor(parameter));
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
