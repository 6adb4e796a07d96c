// SPDX-License-Identifier: BSD-3-Clause
// Plain tensors and values that differ between ranks are never silently saved
// from one rank.
#include <dtensor/checkpoint/async_saver.h>
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/data_parallel/replicate.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

#include <filesystem>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using test_weights::Folder;
namespace fs = std::filesystem;

StateDict state_of(const at::Tensor& mine) {
  StateDict state;
  state.insert("same", torch::ones({3}));
  state.insert("stats", mine);
  return state;
}

at::Tensor of_rank(int64_t rank, at::IntArrayRef sizes) {
  return at::full(sizes, static_cast<double>(rank), at::kDouble);
}

TEST(ComparePlain, RefusesTensorsThatDiffer) {
  const Folder folder;
  run_ranks(3, [&](int64_t rank) {
    auto state = state_of(of_rank(rank == 1 ? 7 : 0, {4}));
    EXPECT_EQ(
        error_of([&] { save_checkpoint(folder / "run", {.tensors = &state}); }),
        "[save_checkpoint] \"stats\" is not distributed and differs between "
        "ranks: rank 1 has other values than rank 0. Make it the same on all "
        "ranks (broadcast_buffers() for statistics of batch norms), or make it "
        "a DTensor, or save the values of rank 0 with allow_differences = "
        "true.");
    EXPECT_FALSE(fs::exists(folder / "run"));
  });
}

// Large tensors are included, because several ranks would normally share the
// writing of large tensors.
TEST(ComparePlain, SavesPlainTensorsOfRankZeroIfAllowed) {
  const Folder folder;
  for (const int64_t rows : {4, 500000}) {
    run_ranks(3, [&](int64_t rank) {
      auto state = state_of(of_rank(rank + 1, {rows}));
      save_checkpoint(
          folder / "run",
          {.tensors = &state},
          {.overwrite = true, .allow_differences = true});
      auto loaded = state_of(at::zeros({rows}, at::kDouble));
      load_checkpoint(folder / "run", {.tensors = &loaded});
      EXPECT_TRUE(at::equal(loaded["stats"], of_rank(1, {rows})));
    });
  }
}

TEST(ComparePlain, RefusesValuesOfExtraThatDiffer) {
  const Folder folder;
  run_ranks(2, [&](int64_t rank) {
    CheckpointExtra extra = {
        {"seed", rank}, {"step", int64_t{3}}, {"state", of_rank(rank, {2})}};
    const auto error =
        error_of([&] { save_checkpoint(folder / "run", {.extra = &extra}); });
    EXPECT_THAT(
        error, testing::HasSubstr("\"extra.state\" is not distributed"));
    EXPECT_THAT(error, testing::HasSubstr("(further tensors that differ: 1)"));
    save_checkpoint(
        folder / "run", {.extra = &extra}, {.allow_differences = true});
    extra.clear();
    load_checkpoint(folder / "run", {.extra = &extra});
    EXPECT_EQ(std::get<int64_t>(extra["seed"]), 0);
    EXPECT_EQ(std::get<int64_t>(extra["step"]), 3);
  });
}

// Equal values with other strides, and tensors without elements, compare equal.
TEST(ComparePlain, LooksAtValuesAlone) {
  const Folder folder;
  run_ranks(2, [&](int64_t rank) {
    const auto values = at::arange(12, at::kDouble).view({3, 4});
    StateDict state;
    state.insert("w", rank == 0 ? values : values.t().contiguous().t());
    state.insert("none", at::empty({0, 3}));
    state.insert("number", at::full({}, 2.));
    save_checkpoint(folder / "run", {.tensors = &state});
    EXPECT_TRUE(fs::exists(folder / "run"));
  });
}

TEST(ComparePlain, RefusesWhatIsSavedMeanwhile) {
  const Folder folder;
  run_ranks(2, [&](int64_t rank) {
    auto state = state_of(of_rank(rank, {4}));
    AsyncSaver saver;
    EXPECT_THAT(
        error_of([&] { saver.save(folder / "run", {.tensors = &state}); }),
        testing::HasSubstr("\"stats\" is not distributed and differs"));
  });
}

// The statistics of a replicated model are equal on all ranks after a step.
TEST(ComparePlain, TakesReplicatedModelsWithBatchNorms) {
  const Folder folder;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    torch::nn::Sequential model(
        torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
    for (auto& p : model->parameters()) {
      const torch::NoGradGuard no_grad;
      p.fill_(0.5);
    }
    replicate(*model, mesh);
    torch::optim::AdamW optimizer(model->parameters());
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      model
          ->forward(
              uniform({6, 4}, static_cast<uint64_t>(rank + 1)).to(at::kFloat))
          .square()
          .mean()
          .backward();
      optimizer.step();
    }
    save_checkpoint(
        folder / "run", {.model = model.ptr().get(), .optimizer = &optimizer});
    EXPECT_TRUE(fs::exists(folder / "run"));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
