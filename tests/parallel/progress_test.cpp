// SPDX-License-Identifier: BSD-3-Clause
// Styles over a backend with background progress start collectives early and
// compute meanwhile. The backend of this test records starts and waits.
#include <dtensor/comm/backend_layer.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <tests/comm/store_world.h>
#include <tests/parallel/modules.h>

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
using ::testing::ElementsAre;

using Notes = std::vector<std::string>;

class AloneBackend final : public BackendLayer {
 public:
  AloneBackend(GroupBackendPtr inner, Notes& notes)
      : BackendLayer(std::move(inner)),
        notes_(notes) {}
  bool progresses_in_background(c10::DeviceType /*device*/) const override {
    return true;
  }

  InFlight submit(Collective&& collective) override {
    const std::string name(collective.name());
    if (!collective.is_async) {
      notes_.emplace_back(name);
      return BackendLayer::submit(std::move(collective));
    }
    notes_.emplace_back("begin " + name);
    const auto result = BackendLayer::submit(std::move(collective)).wait();
    return {nullptr, [result, &notes = notes_] {
              notes.emplace_back("wait");
              return result;
            }};
  }

 private:
  Notes& notes_;
};

class AloneWorld final : public World {
 public:
  AloneWorld(int64_t rank, int64_t size, test::StorePtr store, Notes& notes)
      : World(rank, size, "alone world"),
        store_(std::move(store)),
        notes_(notes) {}

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override {
    return std::make_shared<AloneBackend>(
        std::make_shared<test::StoreBackend>(
            std::move(members), store_, rounds_),
        notes_);
  }

 private:
  test::StorePtr store_;
  std::map<std::string, int64_t> rounds_;
  Notes& notes_;
};

// Records products of this thread in the same list.
thread_local Notes* products_of = nullptr;

std::unique_ptr<at::ObserverContext> note_product(
    const at::RecordFunction& fn) {
  if (products_of != nullptr && std::string(fn.name()) == "aten::mm") {
    products_of->emplace_back("product");
  }
  return nullptr;
}

class NotedProducts {
 public:
  explicit NotedProducts(Notes& notes)
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(note_product)
                .scopes({at::RecordScope::FUNCTION}))) {
    notes.clear();
    products_of = &notes;
  }
  ~NotedProducts() {
    products_of = nullptr;
    at::removeCallback(handle_);
  }
  NotedProducts(const NotedProducts&) = delete;
  NotedProducts& operator=(const NotedProducts&) = delete;

 private:
  at::CallbackHandle handle_;
};

// Runs on two ranks. Expectations hold for rank 0.
void on_two_ranks(const std::function<void(const DeviceMesh&, Notes&)>& fn) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Notes notes;
      const auto world = std::make_shared<AloneWorld>(rank, 2, store, notes);
      const WorldScope scope(world);
      EXPECT_NO_THROW(fn(init_device_mesh(at::kCPU, {2}, {"tp"}), notes));
      world->end();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

at::Tensor input() {
  return uniform({3, 4}, 5).requires_grad_();
}

TEST(StylesThatDoNotWait, ReduceTheInputsGradientBesideTheWeights) {
  on_two_ranks([](const DeviceMesh& mesh, Notes& notes) {
    auto plain = filled(torch::nn::Linear(4, 6));
    auto mine = filled(torch::nn::Linear(4, 6));
    parallelize_module(*mine, mesh, ColwiseParallel());
    auto truth = input();
    plain(truth).square().sum().backward();
    auto x = input();
    const auto loss = mine(x).square().sum();
    {
      const NotedProducts noted(notes);
      loss.backward();
    }
    EXPECT_THAT(
        notes, ElementsAre("product", "begin all_reduce", "product", "wait"));
    expect_close(x.grad(), truth.grad(), "input");
    expect_same_gradients(*mine, *plain, "colwise");
  });
}

TEST(StylesThatDoNotWait, ScatterItLikewise) {
  on_two_ranks([](const DeviceMesh& mesh, Notes& notes) {
    auto mine = filled(torch::nn::Linear(4, 6));
    parallelize_module(
        *mine, mesh, ColwiseParallel({.input_layouts = Shard(0)}));
    auto x = part(uniform({4, 4}, 5), mesh, Shard(0)).requires_grad_();
    const auto loss = mine(x).square().sum();
    {
      const NotedProducts noted(notes);
      loss.backward();
    }
    EXPECT_THAT(
        notes,
        ElementsAre("product", "begin reduce_scatter", "product", "wait"));
    auto plain = filled(torch::nn::Linear(4, 6));
    auto truth = uniform({4, 4}, 5).requires_grad_();
    plain(truth).square().sum().backward();
    expect_close(x.grad(), part(truth.grad(), mesh, Shard(0)), "input");
    expect_same_gradients(*mine, *plain, "colwise");
  });
}

// The second branch is computed while the first one is reduced.
TEST(StylesThatDoNotWait, LetDTensorsOutBeforeTheyAreThere) {
  on_two_ranks([](const DeviceMesh& mesh, Notes& notes) {
    auto a = filled(torch::nn::Linear(4, 6), 1);
    auto b = filled(torch::nn::Linear(4, 6), 7);
    const auto x = uniform({3, 4}, 5);
    const auto truth = a(x) + b(x);
    for (auto linear : {a, b}) {
      parallelize_module(
          *linear,
          mesh,
          RowwiseParallel(
              {.input_layouts = Replicate(), .use_local_output = false}));
    }
    const torch::NoGradGuard no_grad;
    const NotedProducts noted(notes);
    const auto first = a(x);
    const auto second = b(x);
    EXPECT_THAT(notes, ::testing::Not(::testing::Contains("wait")));
    expect_close(first + second, truth, "sum");
    notes.erase(
        std::remove(notes.begin(), notes.end(), "product"), notes.end());
    EXPECT_THAT(
        notes,
        ElementsAre("begin all_reduce", "begin all_reduce", "wait", "wait"));
  });
}

// A gradient that is differentiated again uses the general path.
TEST(StylesThatDoNotWait, HaveSecondDerivatives) {
  on_two_ranks([](const DeviceMesh& mesh, Notes&) {
    const auto second = [&](torch::nn::Linear& linear, at::Tensor x) {
      const auto loss = linear(x).pow(3).sum();
      const auto grad = torch::autograd::grad(
          {loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
      grad.square().sum().backward();
      return x.grad();
    };
    auto plain = filled(torch::nn::Linear(4, 6));
    auto mine = filled(torch::nn::Linear(4, 6));
    parallelize_module(
        *mine, mesh, ColwiseParallel({.output_layouts = Replicate()}));
    const auto truth = second(plain, input());
    expect_close(second(mine, input()), truth, "input", 1e-9);
    expect_same_gradients(*mine, *plain, "colwise", 1e-9);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
