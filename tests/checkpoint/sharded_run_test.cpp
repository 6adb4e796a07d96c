// SPDX-License-Identifier: BSD-3-Clause
// GPT training on a two-dimensional mesh is stopped half way and resumed on
// other ranks. Resuming also works after Python has read the checkpoint and
// written it again.
#include <dtensor/checkpoint/async_saver.h>
#include <dtensor/parallel/state_dict.h>
#include <tests/checkpoint/exchange.h>
#include <tests/data_parallel/training.h>
#include <tests/weights/files.h>

#include <fstream>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_training;
using test_checkpoint::exchange;
using test_weights::Folder;

constexpr int64_t kStop = 15;
const Options kOptions{.steps = 30, .accumulate = 2, .max_norm = 0.5};

CheckpointState state_of(ShardedRun& run) {
  return {.model = run.model().get(), .optimizer = &run.optimizer()};
}

// Writes all full tensors of a run to a file that torch.load reads,
// independently of checkpoints.
void write_truth(ShardedRun& run, const std::string& path) {
  const auto whole = StateDictOptions{.full_state_dict = true};
  const auto model = get_model_state_dict(*run.model(), whole);
  const auto optimizer =
      get_optimizer_state_dict(*run.model(), run.optimizer(), whole);
  c10::Dict<std::string, at::Tensor> all;
  for (const auto& item : model) {
    all.insert(item.key(), item.value().clone());
  }
  for (const auto& item : optimizer) {
    all.insert("optimizer." + item.key(), item.value().clone());
  }
  if (get_rank() == 0) {
    const auto bytes = torch::pickle_save(all);
    std::ofstream(path, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
}

// Trains on a (2, 2) mesh without stopping. Saves after half of the steps.
// Returns the losses.
std::vector<double> train_and_save(const Folder& folder) {
  std::vector<double> losses;
  run_ranks(4, [&] {
    ShardedRun run(make_gpt(), {{2, 2}, {"shard", "tp"}});
    AsyncSaver saver;
    for (int64_t step = 0; step < kOptions.steps; ++step) {
      if (step == kStop) {
        CheckpointExtra extra = {{"step", step}};
        auto state = state_of(run);
        state.extra = &extra;
        saver.save(folder / "ours", state);
        write_truth(run, folder / "truth.pt");
      }
      const auto loss = run.step(step, kOptions);
      if (get_rank() == 0) {
        losses.push_back(loss);
      }
    }
    saver.wait();
  });
  return losses;
}

// Resumes from the checkpoint, starting with a model of other values, and
// compares the losses.
void expect_goes_on(
    const std::string& path,
    const Layout& layout,
    const std::vector<double>& losses) {
  run_ranks(layout.ranks(), [&] {
    ShardedRun run(filled(gpt::GPT(config()), 50), layout);
    load_checkpoint(path, state_of(run));
    for (int64_t step = kStop; step < kOptions.steps; ++step) {
      EXPECT_NEAR(
          run.step(step, kOptions), losses[static_cast<size_t>(step)], 1e-9)
          << "step " << step << " on " << run.mesh();
    }
  });
}

const std::vector<Layout> kOthers = {
    {{4}, {"shard"}},
    {{3}, {"shard"}},
    {{1}, {"shard"}}};

TEST(SlowShardedRun, GoesOnOnOtherRanks) {
  const Folder folder;
  auto plain = make_gpt();
  const auto truth = train_plain(plain, kOptions);
  const auto losses = train_and_save(folder);
  ASSERT_EQ(losses.size(), truth.size());
  for (size_t i = 0; i < truth.size(); ++i) {
    EXPECT_NEAR(losses[i], truth[i], 1e-9) << "step " << i;
  }
  for (const auto& layout : kOthers) {
    expect_goes_on(folder / "ours", layout, losses);
  }
}

TEST(SlowShardedRun, GoesOnFromWhatPythonWrites) {
  const Folder folder;
  const auto losses = train_and_save(folder);
  // Python reads the checkpoint, compares it with the expected tensors, and
  // saves it on three ranks.
  if (exchange("run", folder / "") == 77) {
    GTEST_SKIP() << test_checkpoint::kWhyNot;
  }
  const auto bytes = [&] {
    std::ifstream file(folder / "truth.pt", std::ios::binary);
    return std::vector<char>(
        std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }();
  const auto truth = torch::pickle_load(bytes).toGenericDict();
  StateDict found;
  for (const auto& item : truth) {
    found.insert(
        item.key().toStringRef(), at::zeros_like(item.value().toTensor()));
  }
  load_checkpoint(folder / "python", {.tensors = &found});
  for (const auto& item : truth) {
    const auto& name = item.key().toStringRef();
    EXPECT_TRUE(at::equal(found[name], item.value().toTensor())) << name;
  }
  for (const auto& layout : kOthers) {
    expect_goes_on(folder / "python", layout, losses);
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
