// SPDX-License-Identifier: BSD-3-Clause
// Random tensors, layouts, meshes, models and optimizers. A state saved on one
// mesh is loaded on another, and every bit is equal.
#include <dtensor/checkpoint/async_saver.h>
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/layout/text.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

#include <functional>
#include <memory>
#include <random>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using test_weights::Folder;

using Random = std::mt19937;

int64_t below(Random& random, int64_t n) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
}

template <class T>
const T& one_of(Random& random, const std::vector<T>& all) {
  return all[static_cast<size_t>(
      below(random, static_cast<int64_t>(all.size())))];
}

const std::vector<std::vector<int64_t>> kMeshes =
    {{1}, {2}, {3}, {5}, {2, 2}, {1, 3}, {3, 2}, {2, 1, 2}, {2, 2, 2}};

const std::vector<at::ScalarType> kDtypes = {
    at::kDouble,
    at::kFloat,
    at::kHalf,
    at::kBFloat16,
    at::kFloat8_e4m3fn,
    at::kFloat8_e5m2,
    at::kFloat8_e4m3fnuz,
    at::kFloat8_e5m2fnuz,
    at::kFloat8_e8m0fnu,
    at::kLong,
    at::kInt,
    at::kShort,
    at::kChar,
    at::kByte,
    at::kUInt16,
    at::kUInt32,
    at::kUInt64,
    at::kBool,
    at::kComplexFloat};

// Returns a tensor of random bits, including NaNs.
at::Tensor drawn_tensor(Random& random) {
  const auto dtype = one_of(random, kDtypes);
  std::vector<int64_t> sizes;
  for (auto dims = below(random, 4); dims > 0; --dims) {
    sizes.push_back(below(random, 8) == 0 ? 0 : 1 + below(random, 9));
  }
  const auto count = c10::multiply_integers(sizes);
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  auto bytes = at::empty({count * item}, at::kByte);
  for (int64_t i = 0; i < bytes.numel(); ++i) {
    bytes.mutable_data_ptr<uint8_t>()[i] = static_cast<uint8_t>(
        dtype == at::kBool ? below(random, 2) : below(random, 256));
  }
  return bytes.view(dtype).view(sizes);
}

// Returns true if LibTorch lacks the operators to split and concatenate this
// dtype.
bool lacks_operators(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return dtype == at::kUInt16 || dtype == at::kUInt32 || dtype == at::kUInt64;
}

Placements drawn_layout(
    Random& random,
    const std::vector<int64_t>& mesh,
    const at::Tensor& tensor) {
  Placements layout(mesh.size(), Replicate());
  if (tensor.dim() == 0 || lacks_operators(tensor)) {
    return layout;
  }
  for (size_t m = 0; m < mesh.size(); ++m) {
    const auto dim = below(random, tensor.dim());
    switch (below(random, 5)) {
      case 0:
        break;
      case 1:
        layout[m] = Shard(dim, 1 + below(random, 3));
        break;
      case 2:
        if (m + 1 < mesh.size()) { // like fully_shard after parallelize_module
          layout[m] = StridedShard(dim, mesh[m + 1]);
          layout[++m] = Shard(dim);
          break;
        }
        layout[m] = StridedShard(dim, 1 + below(random, 3));
        break;
      default:
        layout[m] = Shard(dim);
    }
  }
  return layout;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bytes = [](const at::Tensor& t) {
    return t.contiguous().view({-1}).view(at::kByte);
  };
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
      (a.numel() == 0 || at::equal(bytes(a), bytes(b)));
}

struct Drawn {
  std::vector<at::Tensor> whole;
  std::vector<int64_t> mesh;
  std::vector<Placements> layouts; // empty: plain tensors
  std::vector<int64_t> other_mesh;
  std::vector<Placements> other_layouts;

  explicit Drawn(Random& random)
      : mesh(one_of(random, kMeshes)),
        other_mesh(one_of(random, kMeshes)) {
    for (int i = 0; i < 12; ++i) {
      whole.push_back(drawn_tensor(random));
      const bool plain = below(random, 6) == 0;
      layouts.push_back(
          plain ? Placements{} : drawn_layout(random, mesh, whole.back()));
      other_layouts.push_back(
          plain ? Placements{}
                : drawn_layout(random, other_mesh, whole.back()));
    }
  }
};

StateDict laid_out(
    const std::vector<at::Tensor>& whole,
    const std::vector<int64_t>& shape,
    const std::vector<Placements>& layouts) {
  const auto mesh = init_device_mesh(at::kCPU, shape);
  StateDict state;
  for (size_t i = 0; i < whole.size(); ++i) {
    state.insert(
        "t" + std::to_string(i),
        layouts[i].empty()
            ? whole[i].clone()
            : distribute_tensor(whole[i], mesh, layouts[i], std::nullopt));
  }
  return state;
}

void expect_goes_over(const Drawn& drawn, Random& random, int seed) {
  const Folder folder;
  const auto path = folder / "one";
  const bool is_full = below(random, 4) == 0;
  const bool is_async = below(random, 2) == 0;
  const LoadOptions how{
      .verify = below(random, 4) > 0, .share_reading = below(random, 2) == 0};
  run_ranks(c10::multiply_integers(drawn.mesh), [&] {
    auto state = laid_out(drawn.whole, drawn.mesh, drawn.layouts);
    const SaveOptions options{.full = is_full, .max_file_bytes = 200};
    if (is_async) {
      AsyncSaver saver;
      saver.save(path, {.tensors = &state}, options);
      saver.wait();
    } else {
      save_checkpoint(path, {.tensors = &state}, options);
    }
  });
  run_ranks(c10::multiply_integers(drawn.other_mesh), [&] {
    std::vector<at::Tensor> zeros;
    for (const auto& whole : drawn.whole) {
      zeros.push_back(at::zeros(whole.sizes(), at::kByte).to(whole.dtype()));
    }
    auto state = laid_out(zeros, drawn.other_mesh, drawn.other_layouts);
    load_checkpoint(path, {.tensors = &state}, how);
    for (size_t i = 0; i < drawn.whole.size(); ++i) {
      const auto name = "t" + std::to_string(i);
      EXPECT_TRUE(same_bits(full(state[name]), drawn.whole[i]))
          << name << ", " << drawn.whole[i].dtype() << drawn.whole[i].sizes()
          << ", seed " << seed << ", from " << at::IntArrayRef(drawn.mesh)
          << to_string(drawn.layouts[i]) << " to "
          << at::IntArrayRef(drawn.other_mesh)
          << to_string(drawn.other_layouts[i]);
    }
  });
}

void expect_any_go_over(int first, int last) {
  for (int seed = first; seed < last && !::testing::Test::HasFailure();
       ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<uint32_t>(seed));
    const Drawn drawn(random);
    expect_goes_over(drawn, random, seed);
  }
}

TEST(RandomCheckpoint, GoesOverBitByBit) {
  expect_any_go_over(0, 24);
}
TEST(SlowRandomCheckpoint, GoesOverBitByBit) {
  expect_any_go_over(24, 600);
}

// A model with a parameter of two names, and with a boolean and a scalar
// buffer.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : wte(register_module("wte", torch::nn::Embedding(9, 6))),
        mlp(register_module("mlp", Mlp(6, 7))),
        head(register_parameter("head", wte->weight)),
        gain(register_parameter("gain", at::scalar_tensor(1.5))) {
    register_buffer("flags", at::arange(5).remainder(2).gt(0));
    register_buffer("scale", at::scalar_tensor(0.25, at::kBFloat16));
  }
  std::vector<at::Tensor> parameters_once() const {
    auto all = mlp->parameters();
    all.push_back(wte->weight);
    all.push_back(gain);
    return all;
  }
  torch::nn::Embedding wte;
  Mlp mlp;
  at::Tensor head;
  at::Tensor gain;
};
TORCH_MODULE(Net);

// Arrangement of a model on a mesh.
struct Arrangement {
  std::string name;
  std::vector<int64_t> mesh;
  std::vector<std::string> names;
  std::function<void(Net&, const DeviceMesh&)> put;
};

void shard_units(Net& net, const DeviceMesh& mesh) {
  fully_shard(*net->mlp->w1, {.mesh = mesh});
  fully_shard(*net->mlp->w2, {.mesh = mesh});
  fully_shard(*net->wte, {.mesh = mesh});
}

const std::vector<Arrangement> kArrangements = {
    {"plain", {2}, {"dp"}, [](Net&, const DeviceMesh&) {}},
    {"tp",
     {3},
     {"tp"},
     [](Net& net, const DeviceMesh& mesh) {
       parallelize_module(*net->mlp, mesh, mlp_plan());
     }},
    {"fsdp", {4}, {"dp"}, shard_units},
    {"hsdp", {2, 2}, {"replicas", "dp"}, shard_units},
    {"rows of tp",
     {2, 2},
     {"dp", "tp"},
     [](Net& net, const DeviceMesh& mesh) {
       parallelize_module(*net->mlp, mesh["tp"], mlp_plan());
     }},
    {"fsdp and tp", {2, 3}, {"dp", "tp"}, [](Net& net, const DeviceMesh& mesh) {
       parallelize_module(*net->mlp, mesh["tp"], mlp_plan());
       fully_shard(*net->mlp->w1, {.mesh = mesh["dp"]});
       fully_shard(*net->mlp->w2, {.mesh = mesh["dp"]});
     }}};

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(Net&, double)>;

template <class Optimizer, class Options>
MakeOptimizer maker(Options options) {
  return [options](Net& net, double rate) {
    auto own = options;
    own.lr(rate);
    return std::make_unique<Optimizer>(net->parameters_once(), own);
  };
}

const std::vector<MakeOptimizer> kOptimizers = {
    maker<torch::optim::SGD>(torch::optim::SGDOptions(1)),
    maker<torch::optim::SGD>(torch::optim::SGDOptions(1).momentum(0.9)),
    maker<torch::optim::Adam>(torch::optim::AdamOptions().amsgrad(true)),
    maker<torch::optim::AdamW>(torch::optim::AdamWOptions()),
    maker<torch::optim::Adagrad>(torch::optim::AdagradOptions()),
    maker<torch::optim::RMSprop>(
        torch::optim::RMSpropOptions().centered(true).momentum(0.5))};

struct Placed {
  Net net;
  DeviceMesh mesh;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  CheckpointExtra extra;

  Placed(const Arrangement& how, const MakeOptimizer& make, uint64_t seed)
      : net(filled(Net(), seed)),
        mesh(init_device_mesh(at::kCPU, how.mesh, how.names)) {
    how.put(net, mesh);
    optimizer = make(net, static_cast<double>(seed) / 7);
  }

  // Sets random gradients, equal in all layouts, and steps. One parameter gets
  // no gradient.
  void step(uint64_t seed) {
    for (auto& parameter : net->parameters_once()) {
      if (parameter.is_same(net->mlp->w2->bias)) {
        continue;
      }
      const auto grad = uniform(parameter.sizes(), ++seed);
      parameter.mutable_grad() = is_dtensor(parameter)
          ? at::Tensor(distribute_tensor(
                grad,
                DTensor(parameter).device_mesh(),
                DTensor(parameter).placements(),
                std::nullopt))
          : grad;
    }
    optimizer->step();
  }

  CheckpointState state() {
    return {.model = net.get(), .optimizer = optimizer.get(), .extra = &extra};
  }

  StateDict all() {
    StateDict found = get_model_state_dict(*net, {.full_state_dict = true});
    const auto kept =
        get_optimizer_state_dict(*net, *optimizer, {.full_state_dict = true});
    for (const auto& item : kept) {
      found.insert("optimizer." + item.key(), item.value());
    }
    for (auto& item : found) {
      item.value() = item.value().clone();
    }
    return found;
  }
};

TEST(RandomCheckpoint, HasModelsAndOptimizers) {
  Random random(5);
  for (int round = 0; round < 24; ++round) {
    const auto& from = kArrangements[static_cast<size_t>(round) % 6];
    const auto& to = one_of(random, kArrangements);
    const auto& make = kOptimizers[static_cast<size_t>(round / 2) % 6];
    const auto seed = static_cast<uint64_t>(round) + 1;
    SCOPED_TRACE(from.name + " to " + to.name + " " + std::to_string(round));
    const Folder folder;
    StateDict truth;
    run_ranks(c10::multiply_integers(from.mesh), [&] {
      Placed run(from, make, seed);
      if (round % 4 != 3) { // otherwise the optimizer has no state yet
        run.step(seed);
        run.step(seed + 9);
      }
      run.extra = {{"round", round}, {"seen", at::arange(round)}};
      save_checkpoint(folder / "one", run.state());
      auto all = run.all();
      if (get_rank() == 0) {
        truth = std::move(all);
      }
    });
    run_ranks(c10::multiply_integers(to.mesh), [&] {
      Placed run(to, make, seed + 50);
      run.step(3);
      load_checkpoint(folder / "one", run.state());
      EXPECT_EQ(std::get<int64_t>(run.extra.at("round")), round);
      EXPECT_TRUE(at::equal(
          std::get<at::Tensor>(run.extra.at("seen")), at::arange(round)));
      const auto all = run.all();
      EXPECT_EQ(all.keys(), truth.keys());
      for (const auto& item : truth) {
        EXPECT_TRUE(same_bits(all[item.key()], item.value())) << item.key();
      }
    });
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
