// SPDX-License-Identifier: BSD-3-Clause
// One training step of the example's GPT. Modes: one process with two threads,
// two ranks with tensor parallelism, two ranks with sequence parallelism and
// loss_parallel, and two ranks with half of the batch each, with a replicated
// (dp) or sharded (fsdp) model. Ranks are threads, or processes over shared
// memory (_shm) and Gloo (_gloo). The losses show that all modes do the same
// work.
//
// gpt_small is the GPT of `make demo`, where overhead is larger. In tp_checked
// and sp_checked, every other step is in a scope of CheckReplicas;
// extra_percent is its extra time over the step before it, and
// extra_cpu_percent is its extra processor time, which depends less on other
// programs.
#include "forked.h"
#include "harness.h"
#include "profile.h"

#include <examples/gpt/model.h>
#include <examples/gpt/plan.h>

#include <ctime>
#include <optional>

namespace {

using namespace dtensor;

const gpt::Config kModel = {
    .vocab = 4096,
    .block = 128,
    .layers = 4,
    .heads = 8,
    .width = 256,
    .dropout = 0};
const gpt::Config kSmall = {.dropout = 0};
constexpr int64_t kBatch = 4;
constexpr int64_t kSteps = 20;
constexpr int64_t kWarmUp = 3;

// Distribution of the model over ranks with different data.
enum class Data { kSame, kReplicated, kSharded };

struct Mode {
  std::string name;
  int64_t ranks = 1;
  int intra_op_threads = 1;
  /// Parallelization; nullopt for the plain model.
  std::optional<gpt::Parallel> parallel = std::nullopt;
  /// Backend of ranks that are processes. Empty: ranks are threads.
  std::string backend = {};
  Data data = Data::kSame;
  /// True if CheckReplicas checks every other step.
  bool is_checked = false;

  const gpt::Config& model() const {
    return name.starts_with("gpt_small/") ? kSmall : kModel;
  }
};

const gpt::Parallel kTensor = {};
const gpt::Parallel kSequence = {.sequence = true, .loss = true};

// Processes come first: they are forked, which requires a process without other
// threads.
const std::vector<Mode> kModes = {
    {"gpt/tp_shm", 2, 1, kTensor, "shm"},
    {"gpt/sp_shm", 2, 1, kSequence, "shm"},
    {"gpt/tp_gloo", 2, 1, kTensor, "gloo"},
    {"gpt/sp_gloo", 2, 1, kSequence, "gloo"},
    {"gpt/fsdp_shm", 2, 1, {}, "shm", Data::kSharded},
    {"gpt/dp_shm", 2, 1, {}, "shm", Data::kReplicated},
    {"gpt/fsdp_gloo", 2, 1, {}, "gloo", Data::kSharded},
    {"gpt/tp_checked_shm", 2, 1, kTensor, "shm", Data::kSame, true},
    {"gpt_small/tp_shm", 2, 1, kTensor, "shm"},
    {"gpt_small/sp_shm", 2, 1, kSequence, "shm"},
    {"gpt_small/tp_gloo", 2, 1, kTensor, "gloo"},
    {"gpt_small/sp_gloo", 2, 1, kSequence, "gloo"},
    {"gpt_small/fsdp_shm", 2, 1, {}, "shm", Data::kSharded},
    {"gpt_small/dp_shm", 2, 1, {}, "shm", Data::kReplicated},
    {"gpt/single", 1, 2},
    {"gpt/tp", 2, 1, kTensor},
    {"gpt/tp_checked", 2, 1, kTensor, "", Data::kSame, true},
    {"gpt/sp", 2, 1, kSequence},
    {"gpt/sp_checked", 2, 1, kSequence, "", Data::kSame, true},
    {"gpt/dp", 2, 1, {}, "", Data::kReplicated},
    {"gpt/fsdp", 2, 1, {}, "", Data::kSharded},
    {"gpt_small/single", 1, 2},
    {"gpt_small/tp", 2, 1, kTensor},
    {"gpt_small/sp", 2, 1, kSequence},
    {"gpt_small/dp", 2, 1, {}, "", Data::kReplicated},
    {"gpt_small/fsdp", 2, 1, {}, "", Data::kSharded}};

double step(
    gpt::GPT& model,
    torch::optim::Optimizer& optimizer,
    bool class_sharded,
    const torch::Tensor& ids) {
  const int64_t length = ids.size(1) - 1;
  std::optional<LossParallel> scope;
  if (class_sharded) {
    scope.emplace();
  }
  const auto loss =
      gpt::loss_of(model(ids.narrow(1, 0, length)), ids.narrow(1, 1, length));
  loss.backward();
  scope.reset();
  optimizer.step();
  optimizer.zero_grad();
  return loss.item<double>();
}

void spread(gpt::GPT& model, const Mode& mode, const DeviceMesh& mesh) {
  if (mode.parallel) {
    gpt::parallelize(model, mesh, *mode.parallel);
  } else if (mode.data == Data::kReplicated) {
    replicate(*model, mesh);
  } else if (mode.data == Data::kSharded) {
    for (const auto& block : *model->blocks) {
      fully_shard(*block, {.mesh = mesh});
    }
    fully_shard(*model, {.mesh = mesh});
  }
}

struct Result {
  std::vector<double> seconds;
  std::vector<double> cpu_seconds; // of this process
  double loss = 0;
};

double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// Runs on every rank.
Result train(const Mode& mode, int64_t steps, bench::Profile* profile) {
  const bench::Profile::Scope profiled(profile);
  dtensor::manual_seed(0);
  const auto& config = mode.model();
  gpt::GPT model(config);
  const auto mesh = init_device_mesh(torch::kCPU, {mode.ranks});
  spread(model, mode, mesh);
  const auto shares = mode.data == Data::kSame ? 1 : mode.ranks;
  const auto rows = kBatch / shares;
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions(1e-3));
  auto generator = at::detail::createCPUGenerator(1);
  Result result;
  for (int64_t i = 0; i < steps; ++i) {
    const auto ids = torch::randint(
        config.vocab, {kBatch, config.block + 1}, generator, torch::kLong);
    const auto mine =
        ids.narrow(0, rows * (shares == 1 ? 0 : mesh.get_local_rank()), rows);
    if (profile != nullptr && i == kWarmUp) {
      profile->start();
    }
    const double begin = bench::now();
    const double cpu_begin = cpu_seconds();
    std::optional<CheckReplicas> check;
    if (mode.is_checked && i % 2 == 1) {
      check.emplace(*model, mesh);
    }
    result.loss =
        step(model, optimizer, mode.parallel && mode.parallel->loss, mine);
    if (check) {
      check->finish();
    }
    result.seconds.push_back(bench::now() - begin);
    result.cpu_seconds.push_back(cpu_seconds() - cpu_begin);
  }
  if (shares > 1) {
    result.loss = get_group(mesh)
                      .all_reduce(torch::tensor(result.loss), ReduceOp::kAvg)
                      .item<double>();
  }
  return result;
}

Result
train_on_ranks(const Mode& mode, int64_t steps, bench::Profile* profile) {
  Result result;
  run_ranks(
      mode.ranks,
      [&](int64_t rank) {
        auto mine = train(mode, steps, rank == 0 ? profile : nullptr);
        if (rank == 0) {
          result = std::move(mine);
        }
      },
      {.intra_op_threads = mode.intra_op_threads});
  return result;
}

// Reports pairs of an unchecked and a checked step: the time of the checked
// steps, and their extra time.
void report_pairs(const Mode& mode, const Result& result) {
  std::vector<double> us;
  std::vector<double> extra;
  std::vector<double> extra_cpu;
  const auto percent = [](const std::vector<double>& all, size_t i) {
    return 100 * (all[i + 1] - all[i]) / all[i];
  };
  for (size_t i = 0; i + 1 < result.seconds.size(); i += 2) {
    if (i >= kWarmUp || result.seconds.size() == 2) {
      us.push_back(result.seconds[i + 1] * 1e6);
      extra.push_back(percent(result.seconds, i));
      extra_cpu.push_back(percent(result.cpu_seconds, i));
    }
  }
  const double figure = bench::median(us);
  bench::report(
      mode.name,
      {{"us", figure},
       {"extra_percent", bench::median(extra)},
       {"extra_cpu_percent", bench::median(extra_cpu)},
       {"spread", bench::spread(us, figure)}});
}

void report(
    const Mode& mode,
    const Result& result,
    const bench::Options& options) {
  if (mode.is_checked) {
    report_pairs(mode, result);
    return;
  }
  std::vector<double> us;
  for (size_t i = 0; i < result.seconds.size(); ++i) {
    if (i >= kWarmUp || options.smoke) {
      us.push_back(result.seconds[i] * 1e6);
    }
  }
  const double figure = bench::median(us);
  bench::report(
      mode.name,
      {{"us", figure},
       {"first_us", result.seconds.front() * 1e6},
       {"loss", result.loss},
       {"spread", bench::spread(us, figure)}});
}

void run(const Mode& mode, const bench::Options& options) {
  const int64_t pairs = mode.is_checked ? 2 : 1;
  const int64_t steps = (options.smoke ? 1 : kSteps) * pairs;
  if (mode.backend.empty()) {
    report(mode, train_on_ranks(mode, steps, nullptr), options);
  } else {
    bench::run_forked(mode.ranks, mode.backend, [&](int64_t rank) {
      const Result result = train(mode, steps, nullptr);
      if (rank == 0) {
        report(mode, result, options);
      }
    });
  }
}

void print_profile(const Mode& mode) {
  bench::Profile profile;
  train_on_ranks(mode, kSteps, &profile);
  profile.print(mode.name, kSteps - kWarmUp);
}

} // namespace

int main(int argc, char** argv) {
  bool profiling = false;
  const auto options = bench::parse(
      argc,
      argv,
      "A GPT training step",
      {{"--profile", "Print where rank 0's time goes", &profiling}});
  for (const Mode& mode : kModes) {
    // Only threads are profiled, because a profile of processes would be equal.
    if (options.wants(mode.name) && (!profiling || mode.backend.empty())) {
      profiling ? print_profile(mode) : run(mode, options);
    }
  }
}
