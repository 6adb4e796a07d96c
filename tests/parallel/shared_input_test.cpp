// SPDX-License-Identifier: BSD-3-Clause
// Siblings share the redistribution of their input. It happens once, is freed
// with the input, and is never stale.
#include <dtensor/parallel/module_hooks.h>
#include <dtensor/parallel/prepare_module.h>
#include <tests/parallel/comm_counts.h>
#include <tests/parallel/modules.h>

#include <cmath>
#include <cstring>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

// Creates the input that siblings share, from a leaf.
using MakeInput = std::function<at::Tensor(const at::Tensor& leaf)>;

struct SiblingsImpl : torch::nn::Module {
  SiblingsImpl()
      : a(register_module("a", torch::nn::Linear(8, 8))),
        b(register_module("b", torch::nn::Linear(8, 8))) {}
  torch::nn::Linear a, b;
};
TORCH_MODULE(Siblings);

Siblings siblings(const DeviceMesh& mesh, const Placement& given = Shard(0)) {
  auto pair = filled(Siblings());
  parallelize_module(
      *pair, mesh, {{"*", ColwiseParallel({.input_layouts = given})}});
  return pair;
}

const std::vector<std::pair<std::string, MakeInput>>& inputs() {
  static const std::vector<std::pair<std::string, MakeInput>> all = {
      {"a leaf", [](const at::Tensor& t) { return t; }},
      {"relu", [](const at::Tensor& t) { return t.relu(); }},
      {"layer_norm",
       [](const at::Tensor& t) { return at::layer_norm(t, {8}); }}};
  return all;
}

at::Tensor leaf_of(const DeviceMesh& mesh, bool distributed) {
  const auto local = uniform({3, 8}, 7);
  return (distributed ? at::Tensor(DTensor::from_local(local, mesh, {Shard(0)}))
                      : local)
      .requires_grad_(true);
}

TEST(SharedInputTest, IsGatheredAndReducedOnce) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const bool distributed : {false, true}) {
      for (const auto& [name, make] : inputs()) {
        auto pair = siblings(mesh);
        const auto x = make(leaf_of(mesh, distributed));
        const CommDebugMode comm;
        auto y = pair->a(x) * pair->b(x);
        EXPECT_EQ(counts(comm, false), "1 all_gather") << name;
        y.sum().backward();
        EXPECT_EQ(counts(comm, true), "1 reduce_scatter") << name;
      }
    }
  });
}

c10::weak_intrusive_ptr<c10::StorageImpl> storage_of(const at::Tensor& x) {
  const torch::NoGradGuard no_grad;
  const auto local = is_dtensor(x) ? DTensor(x).to_local() : x;
  return local.storage().getWeakStorageImpl();
}

void expect_nothing_kept(
    const DeviceMesh& mesh,
    bool distributed,
    const Placement& given) {
  for (const auto& [name, make] : inputs()) {
    for (const bool grad_mode : {false, true}) {
      const torch::AutoGradMode guard(grad_mode);
      auto pair = siblings(mesh, given);
      auto x = make(leaf_of(mesh, distributed));
      const auto storage = storage_of(x);
      {
        const auto y = pair->a(x) + pair->b(x);
        EXPECT_FALSE(storage.expired());
      }
      x.reset();
      EXPECT_TRUE(storage.expired()) << name << distributed << grad_mode;
    }
  }
}

// For a replicated input, the shared tensor is the input's own memory.
TEST(SharedInputTest, DiesWithTheTensorAndTheGraph) {
  on_four_ranks([](const DeviceMesh& mesh) {
    expect_nothing_kept(mesh, true, Shard(0));
    expect_nothing_kept(mesh, false, Shard(0));
    expect_nothing_kept(mesh, false, Replicate());
  });
}

TEST(SharedInputTest, IsRecomputedAfterAChange) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const bool distributed : {false, true}) {
      auto pair = siblings(mesh);
      const auto whole = [&](const at::Tensor& x) {
        return distributed ? full(x) : x.detach().repeat({4, 1});
      };
      auto plain = filled(Siblings());
      const torch::NoGradGuard no_grad;
      const auto x = leaf_of(mesh, distributed);
      const auto expected = [&] {
        return part(plain->b(whole(x)), mesh, Shard(-1));
      };
      pair->a(x);
      x.mul_(2);
      expect_close(pair->b(x), expected(), "after a change");
      const torch::AutoGradMode grad(true);
      EXPECT_TRUE(pair->b(x).requires_grad());
      expect_close(pair->b(x), expected(), "in grad mode");
    }
  });
}

TEST(SharedInputTest, IsNotTakenFromAnotherGradMode) {
  on_four_ranks([](const DeviceMesh& mesh) {
    auto pair = siblings(mesh);
    for (const bool distributed : {false, true}) {
      const auto x = leaf_of(mesh, distributed) * 1;
      {
        const torch::NoGradGuard no_grad;
        EXPECT_FALSE(pair->a(x).requires_grad());
      }
      const CommDebugMode comm;
      pair->b(x).sum().backward();
      EXPECT_EQ(counts(comm, false), "1 all_gather");
      EXPECT_EQ(counts(comm, true), "1 reduce_scatter");
    }
  });
}

// Several ranks may use the same plain tensor.
TEST(SharedInputTest, IsNotMixedUpBetweenRanks) {
  const auto x = uniform({3, 8}, 7).requires_grad_(true);
  const auto y = x * 1;
  on_four_ranks([&](const DeviceMesh& mesh) {
    auto pair = siblings(mesh);
    auto plain = filled(Siblings());
    for (int i = 0; i < 20; ++i) {
      const auto sum = pair->a(y) + pair->b(y);
      const auto whole = y.detach().repeat({4, 1});
      expect_close(
          sum.detach(),
          part(plain->a(whole) + plain->b(whole), mesh, Shard(-1)),
          "sum");
    }
  });
}

// Way of writing to x. Its local tensor was `local`, on the memory at `buffer`.
struct Way {
  std::string name;
  std::function<void(at::Tensor& x, const at::Tensor& local, double* buffer)>
      write;
  /// True if the write is detectable. If false, siblings get an error.
  bool counts = true;
};

std::vector<Way> operators() {
  return {
      {"fill_", [](auto& x, auto&, auto*) { x.fill_(5); }},
      {"copy_", [](auto& x, auto&, auto*) { x.copy_(x.detach() * 2); }},
      {"mul_", [](auto& x, auto&, auto*) { x.mul_(2); }},
      {"zero_", [](auto& x, auto&, auto*) { x.zero_(); }},
      {"add_", [](auto& x, auto&, auto*) { x.add_(1); }},
      {"select", [](auto& x, auto&, auto*) { x.select(1, 0).fill_(5); }},
      {"narrow", [](auto& x, auto&, auto*) { x.narrow(1, 2, 3).mul_(5); }},
      {"detach", [](auto& x, auto&, auto*) { x.detach().fill_(5); }},
      {"out", [](auto& x, auto&, auto*) { at::mul_out(x, x.detach(), x); }},
      {"masked_fill_",
       [](auto& x, auto&, auto*) { x.masked_fill_(x.detach() > 0, 5); }},
      {"_foreach_mul_",
       [](auto& x, auto&, auto*) { at::_foreach_mul_({x}, 2); }},
      {"to_local",
       [](auto& x, auto&, auto*) {
         (is_dtensor(x) ? DTensor(x).to_local() : x).fill_(5);
       }},
      {"the local tensor", [](auto&, auto& local, auto*) { local.mul_(2); }},
      {"set_data", [](auto& x, auto&, auto*) { x.set_data(x.detach() * 2); }}};
}

std::vector<Way> pointers() {
  return {
      {"data", [](auto& x, auto&, auto*) { x.data().fill_(5); }, false},
      {"variable_data",
       [](auto& x, auto&, auto*) { x.variable_data().mul_(2); },
       false},
      {"data of the local tensor",
       [](auto&, auto& local, auto*) { local.data().mul_(2); },
       false},
      {"data_ptr",
       [](auto&, auto& local, auto*) {
         local.template data_ptr<double>()[3] = 5;
       },
       false},
      {"data_ptr of to_local",
       [](auto& x, auto&, auto*) {
         const auto part = is_dtensor(x) ? DTensor(x).to_local() : x;
         part.template data_ptr<double>()[3] = 5;
       },
       false},
      {"mutable_data_ptr",
       [](auto&, auto& local, auto*) {
         static_cast<double*>(local.mutable_data_ptr())[0] = 5;
       },
       false},
      {"an accessor",
       [](auto&, auto& local, auto*) {
         local.template accessor<double, 2>()[2][7] = 5;
       },
       false},
      {"the storage",
       [](auto&, auto& local, auto*) {
         static_cast<double*>(local.storage().mutable_data())[1] = 5;
       },
       false},
      {"the buffer",
       [](auto&, auto&, auto* buffer) { std::fill_n(buffer, 24, 5); },
       false},
      {"memcpy",
       [](auto&, auto&, auto* buffer) {
         std::memcpy(buffer, buffer + 8, 8 * sizeof(double));
       },
       false},
      {"another tensor of the buffer",
       [](auto&, auto&, auto* buffer) {
         at::from_blob(buffer, {3, 8}, at::kDouble).mul_(2);
       },
       false},
      {"an optimizer, which writes to data()",
       [](auto& x, auto&, auto*) {
         x.mutable_grad() = at::ones_like(x);
         torch::optim::SGD({x}, 0.1).step();
       },
       false},
      {"NaN",
       [](auto&, auto&, auto* buffer) { buffer[0] = std::nan(""); },
       false}};
}

// Module `a` uses x, then x is written, then `b` (or `a` again) uses it.
// Returns the error; without one, checks the result.
std::string error_after(
    const Way& way,
    bool distributed,
    bool again,
    const DeviceMesh& mesh) {
  auto pair = siblings(mesh);
  auto plain = filled(Siblings());
  auto memory = uniform({3, 8}, 7);
  auto* const buffer = memory.data_ptr<double>();
  const auto local = at::from_blob(buffer, {3, 8}, at::kDouble);
  at::Tensor x = distributed
      ? at::Tensor(DTensor::from_local(local, mesh, {Shard(0)}))
      : local.detach();
  x.requires_grad_();
  const auto first = pair->a(x); // keeps the graph alive
  {
    const torch::NoGradGuard no_grad;
    way.write(x, local, buffer);
  }
  auto& mine = again ? pair->a : pair->b;
  auto& truth = again ? plain->a : plain->b;
  const auto whole = distributed ? full(x) : x.detach().repeat({4, 1});
  return error_of([&] {
    const auto y = mine->forward(x);
    const auto expected = part(truth->forward(whole), mesh, Shard(-1));
    EXPECT_TRUE(
        at::allclose(y.detach(), expected, 1e-9, 1e-9, /*equal_nan=*/true))
        << way.name << distributed << again;
  });
}

std::vector<Way> all_ways() {
  auto ways = operators();
  for (auto& way : pointers()) {
    ways.push_back(std::move(way));
  }
  return ways;
}

TEST(SharedInputTest, IsRecomputedForASecondCallOfAModule) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const auto& way : all_ways()) {
      for (const bool distributed : {false, true}) {
        EXPECT_EQ(error_after(way, distributed, true, mesh), "")
            << way.name << distributed;
      }
    }
  });
}

TEST(SharedInputTest, SiblingsSeeAWriteOrThrow) {
  const std::string past =
      "[boundary] the input of module \"b\", f64[12, 8] on (tp=4): S(0), was "
      "written after module \"a\" used it, without a change of its version "
      "counter: through data_ptr() or data(), or in inference mode. Write to "
      "it with operators such as copy_() outside of inference mode, or pass "
      "the module a clone().";
  on_four_ranks([&](const DeviceMesh& mesh) {
    for (const auto& way : all_ways()) {
      for (const bool distributed : {false, true}) {
        EXPECT_EQ(
            error_after(way, distributed, false, mesh), way.counts ? "" : past)
            << way.name << distributed;
      }
    }
  });
}

// A write that no version counter counts is detected by the bits.
TEST(SharedInputTest, AWriteIsSeenInEveryDtype) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
      auto pair = siblings(mesh);
      pair->to(dtype);
      for (const bool writes : {false, true}) {
        auto local = uniform({3, 8}, 7).to(dtype);
        const at::Tensor x =
            DTensor::from_local(local, mesh, {Shard(0)}).requires_grad_();
        const auto first = pair->a(x);
        if (writes) {
          std::memset(local.data_ptr(), 0, 2);
        }
        const auto text = error_of([&] { pair->b(x); });
        EXPECT_EQ(
            text.find(", was written after module \"a\" used it") < text.size(),
            writes)
            << text;
      }
    }
  });
}

// All steps use one input buffer, for example if batches are copied to a
// device.
TEST(SharedInputTest, InferenceOverOneBuffer) {
  on_four_ranks([](const DeviceMesh& mesh) {
    auto pair = siblings(mesh);
    auto plain = filled(Siblings());
    auto memory = at::zeros({3, 8}, at::kDouble);
    auto* const buffer = memory.data_ptr<double>();
    const torch::NoGradGuard no_grad;
    const at::Tensor x = DTensor::from_local(
        at::from_blob(buffer, {3, 8}, at::kDouble), mesh, {Shard(0)});
    for (int step = 1; step < 5; ++step) {
      std::fill_n(buffer, 24, step);
      const auto whole = at::full({12, 8}, step, at::kDouble);
      expect_close(pair->a(x), part(plain->a(whole), mesh, Shard(-1)), "first");
      if (step != 2) {
        expect_close(
            pair->b(x), part(plain->b(whole), mesh, Shard(-1)), "second");
      }
    }
  });
}

// The input is gathered once with and without gradients, for plain tensors and
// DTensors, also in inference mode.
TEST(SharedInputTest, IsGatheredOnceWithoutGradients) {
  on_four_ranks([](const DeviceMesh& mesh) {
    auto plain = filled(Siblings());
    for (const bool inference : {false, true}) {
      for (const bool distributed : {false, true}) {
        auto pair = siblings(mesh);
        const torch::NoGradGuard no_grad;
        const c10::InferenceMode mode(inference);
        const torch::NoGradGuard still_none;
        const auto x = leaf_of(mesh, distributed) * 1;
        EXPECT_EQ(x.is_inference(), inference);
        const auto whole = distributed ? full(x) : x.detach().repeat({4, 1});
        const CommDebugMode comm;
        for (int step = 1; step <= 3; ++step) {
          expect_close(pair->a(x), part(plain->a(whole), mesh, Shard(-1)), "a");
          expect_close(pair->b(x), part(plain->b(whole), mesh, Shard(-1)), "b");
        }
        EXPECT_EQ(counts(comm, false), "3 all_gather")
            << inference << distributed;
      }
    }
  });
}

PrepareModuleInput gathered() {
  return PrepareModuleInput(
      {.input_layouts = {Shard(0)}, .desired_input_layouts = {Replicate()}});
}

// Writes to its input, as in-place modules do.
struct DoublerImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) {
    return x.mul_(2).clone();
  }
};
DTENSOR_MODULE(Doubler);

struct DoublersImpl : torch::nn::Module {
  DoublersImpl()
      : a(register_module("a", Doubler())),
        b(register_module("b", Doubler())) {}
  Doubler a, b;
};
TORCH_MODULE(Doublers);

TEST(SharedInputTest, WritesToWhatWasMadeCountInInferenceMode) {
  on_four_ranks([](const DeviceMesh& mesh) {
    Doublers both;
    parallelize_module(*both, mesh, {{"*", gathered()}});
    for (const bool distributed : {false, true}) {
      const c10::InferenceMode mode;
      const auto x = leaf_of(mesh, distributed) * 1;
      const auto twice =
          (distributed ? full(x) : x.detach().repeat({4, 1})) * 2;
      expect_close(both->a(x), twice, "the first");
      expect_close(both->b(x), twice, "not what the first has written");
    }
  });
}

TEST(SharedInputTest, AWriteInInferenceModeIsAnError) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const bool distributed : {false, true}) {
      auto pair = siblings(mesh);
      const c10::InferenceMode mode;
      auto x = leaf_of(mesh, distributed) * 1;
      pair->a(x);
      x.add_(1);
      EXPECT_NE(
          error_of([&] { pair->b(x); }).find("or in inference mode"),
          std::string::npos);
    }
  });
}

TEST(SharedInputTest, GradientsOfSiblingsRequestedLater) {
  on_four_ranks([](const DeviceMesh& mesh) {
    auto pair = siblings(mesh);
    auto plain = filled(Siblings());
    at::Tensor x = DTensor::from_local(uniform({3, 8}, 7), mesh, {Shard(0)});
    const auto first = pair->a(x).detach();
    x.requires_grad_();
    pair->b(x).sum().backward();
    const auto whole = full(x).requires_grad_();
    plain->b(whole).sum().backward();
    expect_close(x.grad(), whole.grad(), "gradient", 1e-10);
  });
}

// Remembers the memory of its input.
struct TakerImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) {
    {
      const torch::NoGradGuard no_grad;
      taken = DTensor(x).to_local().storage().getWeakStorageImpl();
    }
    return x.sum(); // the graph, if any, holds no data
  }
  c10::weak_intrusive_ptr<c10::StorageImpl> taken{
      c10::intrusive_ptr<c10::StorageImpl>()};
};
DTENSOR_MODULE(Taker);

struct TakersImpl : torch::nn::Module {
  TakersImpl()
      : a(register_module("a", Taker())),
        b(register_module("b", Taker())) {}
  Taker a, b;
};
TORCH_MODULE(Takers);

TEST(SharedInputTest, IsKeptUntilAllSiblingsHaveIt) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const bool grad_mode : {false, true}) {
      const torch::AutoGradMode guard(grad_mode);
      Takers both;
      parallelize_module(*both, mesh, {{"*", gathered()}});
      const auto x = leaf_of(mesh, true);
      const auto y = leaf_of(mesh, true);
      const auto first = both->a(x);
      EXPECT_FALSE(both->a->taken.expired());
      const auto second = both->b(x);
      EXPECT_TRUE(both->a->taken.expired()) << "all have it";
      EXPECT_TRUE(both->b->taken.expired()) << "all have it";
      const auto third = both->a(x);
      const auto of_x = both->a->taken;
      EXPECT_FALSE(of_x.expired());
      const auto fourth = both->a(y);
      EXPECT_TRUE(of_x.expired()) << "one has come with another input";
    }
  });
}

TEST(SharedInputTest, AnOnlyChildKeepsNothing) {
  on_four_ranks([](const DeviceMesh& mesh) {
    Takers both;
    parallelize_module(*both, mesh, {{"a", gathered()}});
    const auto x = leaf_of(mesh, true);
    both->a(x);
    EXPECT_TRUE(both->a->taken.expired());
  });
}

// Partial, column-sharded and replicated inputs are shared and compared too.
TEST(SharedInputTest, PartialAndOtherShardedInputsAreShared) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const Placement& layout : {Partial(), Shard(1), Replicate()}) {
      auto pair = siblings(mesh);
      auto plain = filled(Siblings());
      at::Tensor x = DTensor::from_local(
          uniform({4, 8 / (layout.is_sharded() ? 4 : 1)}, 3), mesh, {layout});
      x.requires_grad_();
      const auto whole = full(x).requires_grad_();
      const CommDebugMode comm;
      const auto y = pair->a(x) * pair->b(x);
      const auto forward = layout.is_replicate() ? ""
          : layout.is_partial()                  ? "1 all_reduce"
                                                 : "1 all_gather";
      EXPECT_EQ(counts(comm, false), forward);
      y.sum().backward();
      const auto truth = plain->a(whole) * plain->b(whole);
      truth.sum().backward();
      expect_close(y.detach(), part(truth, mesh, Shard(-1)), "output", 1e-10);
      expect_close(x.grad(), whole.grad(), "gradient", 1e-9);
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
