// SPDX-License-Identifier: BSD-3-Clause
// What dtensor/torch_internals.h says of LibTorch: a test that fails here after
// an upgrade names what has changed.
#include <ATen/DTensorState.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <dtensor/dtensor.h>
#include <dtensor/tensor/asked_first_impl.h>
#include <dtensor/tensor/replication_key_impl.h>
#include <dtensor/torch_nodes_impl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/error_of.h"

namespace dtensor {
namespace TEST_SOURCE {

using test_text::error_of;
using Names = std::vector<std::string>;

// Of the operators that `run` calls, outermost ones only.
Names operators_of(const std::function<void()>& run) {
  static thread_local Names* names = nullptr;
  static thread_local int depth = 0;
  Names found;
  names = &found;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& fn)
              -> std::unique_ptr<at::ObserverContext> {
            if (depth++ == 0) {
              names->push_back(fn.name());
            }
            return nullptr;
          },
          [](const at::RecordFunction&, at::ObserverContext*) { --depth; })
          .scopes({at::RecordScope::FUNCTION}));
  run();
  at::removeCallback(handle);
  return found;
}

c10::OperatorHandle find(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

// Nobody's backend has LibTorch's kernels: its autograd above, its own
// decomposition below, and none of a device.
TEST(TorchInternals, StockKernels) {
  const auto add = find("aten::add", "Tensor");
  torch::jit::Stack stack = {
      at::ones({2}).requires_grad_(), at::ones({2}), at::Scalar(1)};
  const auto keys = c10::DispatchKeySet(c10::DispatchKey::AutogradCPU) |
      c10::DispatchKeySet(c10::DispatchKey::CPU);
  add.getComputedKernelForDispatchKey(detail::kNobodysAutogradKey)
      .callBoxed(add, keys, &stack);
  EXPECT_EQ(stack.back().toTensor().grad_fn()->name(), "AddBackward0");
  EXPECT_FALSE(add.hasKernelForDispatchKey(detail::kNobodysKey));
  EXPECT_TRUE(find("aten::narrow", "")
                  .hasKernelForDispatchKey(
                      c10::DispatchKey::CompositeImplicitAutograd));
}

struct Double final : detail::Node {
  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override {
    EXPECT_EQ(torch::autograd::get_current_node().get(), this);
    return {grads[0] * 2};
  }
};

// By what NodePtr is, and weakly by WeakNode.
TEST(TorchInternals, NodesAreHeld) {
  const auto x = at::ones({2}).requires_grad_();
  detail::WeakNode weak{detail::NodePtr()};
  {
    auto y = at::ones({2});
    auto node = detail::make_node<Double>();
    weak = detail::WeakNode(detail::NodePtr(node));
    node->set_next_edges({torch::autograd::impl::gradient_edge(x)});
    torch::autograd::set_history(y, std::move(node));
    y.sum().backward();
    EXPECT_FALSE(weak.expired());
  }
  EXPECT_TRUE(weak.expired());
  EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 2)));
}

TEST(TorchInternals, NodesAreCurrent) {
  EXPECT_TRUE(torch::autograd::get_current_node() == nullptr);
}

// Whether a node computes a gradient follows from what the graph task says of
// the node that gets it, and a task lets itself be told.
TEST(TorchInternals, NodesInside) {
  struct Asks final : torch::autograd::Node {
    torch::autograd::variable_list apply(
        torch::autograd::variable_list&& grads) override {
      const auto* known = torch::autograd::get_current_graph_task_exec_info();
      if (known == nullptr || known->empty()) {
        ADD_FAILURE() << "the task wants everything";
        return {grads[0]};
      }
      const auto& inner = *inside->grad_fn();
      auto* const gets = inner.next_edge(0).function.get();
      before = inner.task_should_compute_output(0);
      using Infos = std::unordered_map<
          torch::autograd::Node*,
          torch::autograd::GraphTask::ExecInfo>;
      const_cast<Infos&>(*known)[gets].needed_ = true;
      after = inner.task_should_compute_output(0);
      return {grads[0]};
    }
    const at::Tensor* inside = nullptr;
    bool before = true;
    bool after = false;
  };
  const auto leaf = at::ones({2}).requires_grad_(true);
  const auto inside = at::ones({2}).requires_grad_(true) * 2;
  const auto asks = detail::make_node<Asks>();
  asks->inside = &inside;
  asks->add_next_edge(torch::autograd::impl::gradient_edge(leaf));
  at::Tensor y = at::ones({2});
  torch::autograd::set_history(y, asks);
  torch::autograd::grad({y.sum()}, {leaf});
  EXPECT_FALSE(asks->before);
  EXPECT_TRUE(asks->after);
}

// A shape that is set without TensorImpl's own functions leaves nothing stale.
TEST(TorchInternals, ShapesAreWhole) {
  run_ranks(1, [] {
    const auto mesh = init_device_mesh(at::kCPU, {1});
    for (const auto& plain : std::vector<at::Tensor>{
             at::ones({}),
             at::ones({0}),
             at::ones({3}),
             at::ones({2, 3}),
             at::ones({2, 3}).t(),
             at::ones({1, 3}).t(),
             at::ones({0, 3}),
             at::ones({2, 3, 4}).permute({2, 0, 1}),
             at::ones({2, 3, 4, 5}),
             at::ones({2, 3, 4, 5}).to(at::MemoryFormat::ChannelsLast),
             at::ones({1, 1, 1, 1})}) {
      const auto x = distribute_tensor(plain, mesh, {Replicate()});
      EXPECT_EQ(x.sizes(), plain.sizes());
      EXPECT_EQ(x.strides(), plain.strides());
      EXPECT_EQ(x.numel(), plain.numel());
      EXPECT_EQ(x.is_contiguous(), plain.is_contiguous()) << plain.sizes();
      EXPECT_EQ(
          x.is_non_overlapping_and_dense(),
          plain.is_non_overlapping_and_dense())
          << plain.sizes();
      EXPECT_EQ(x.suggest_memory_format(), plain.suggest_memory_format())
          << plain.sizes();
    }
  });
}

TEST(TorchInternals, MetaIsKept) {
  run_ranks(1, [] {
    const auto mesh = init_device_mesh(at::kCPU, {1});
    const at::Tensor x = distribute_tensor(at::ones({2}), mesh, {Shard(0)});
    EXPECT_TRUE(is_dtensor(x.detach()));
    EXPECT_TRUE(is_dtensor(x.variable_data()));
    at::Tensor parameter = at::zeros({2}).requires_grad_();
    parameter.set_data(x);
    EXPECT_TRUE(is_dtensor(parameter));
    EXPECT_TRUE(at::equal(DTensor(parameter).to_local(), at::ones({2})));
  });
}

TEST(TorchInternals, DataIsExplained) {
  run_ranks(1, [] {
    const auto mesh = init_device_mesh(at::kCPU, {1});
    const at::Tensor x = distribute_tensor(at::ones({2}), mesh, {Shard(0)}) + 1;
    EXPECT_FALSE(x.has_storage());
    EXPECT_NE(
        error_of([&] { x.data_ptr(); }).find("to_local"), std::string::npos);
  });
}

// After a write to a view its node strides through the base, by this name.
TEST(TorchInternals, ViewsOfWrites) {
  const auto x = at::ones({4}).requires_grad_();
  const auto y = x * 2;
  const auto view = y.narrow(0, 0, 2);
  view.mul_(3);
  EXPECT_NE(
      dynamic_cast<torch::autograd::CopySlices*>(y.grad_fn().get()), nullptr);
  const auto& node = *view.grad_fn();
  EXPECT_NE(
      std::string(typeid(node).name()).find("AsStridedBackward0"),
      std::string::npos);
}

// The operators in which styles meet modules.
TEST(TorchInternals, ModulesCall) {
  torch::nn::Linear linear(3, 2);
  const auto batches = at::ones({2, 2, 3});
  const auto rows = batches[0];
  const Names wide = {"aten::t", "aten::matmul", "aten::add_"};
  EXPECT_EQ(operators_of([&] { linear(batches); }), wide);
  const Names flat = {"aten::t", "aten::addmm"};
  EXPECT_EQ(operators_of([&] { linear(rows); }), flat);
  torch::nn::Embedding table(3, 2);
  const auto ids = at::zeros({2}, at::kLong);
  EXPECT_EQ(operators_of([&] { table(ids); }), Names{"aten::embedding"});
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({3}));
  EXPECT_EQ(operators_of([&] { norm(batches); }), Names{"aten::layer_norm"});
}

TEST(TorchInternals, PlainOperands) {
  EXPECT_FALSE(at::get_dtensor_allow_implicit_replication());
}

// Nobody else's kernels are under the key of implicit_replication, which the
// state of a thread carries along.
TEST(TorchInternals, ReplicationKey) {
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  EXPECT_FALSE(op.hasKernelForDispatchKey(detail::kReplicationKey));
  EXPECT_FALSE(detail::in_implicit_replication());
  std::optional<at::ThreadLocalState> state;
  {
    const auto scope = implicit_replication();
    EXPECT_TRUE(detail::in_implicit_replication());
    state.emplace();
  }
  EXPECT_FALSE(detail::in_implicit_replication());
  const at::ThreadLocalStateGuard as_inside(*state);
  EXPECT_TRUE(detail::in_implicit_replication());
}

// Nobody has kernels at the key of DTensors on the meta device, which comes
// before the backend that would outrank them.
TEST(TorchInternals, AskedFirstKey) {
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  EXPECT_FALSE(op.hasKernelForDispatchKey(detail::kAskedFirstKey));
  run_ranks(2, [] {
    const auto plain = at::empty({4, 4}, at::kMeta);
    const at::Tensor d = distribute_tensor(
        plain, init_device_mesh(at::kCPU, {2}, {"a"}), {Shard(0)});
    EXPECT_TRUE(d.key_set().has(detail::kAskedFirstKey));
    EXPECT_EQ(
        test::error_of([&] { plain + d; }).substr(0, 50),
        "[aten::add.Tensor] got mixed plain tensor and DTen");
  });
}

// Plain tensors of ranks draw from their rank's generator, not the process's.
TEST(TorchInternals, RandomKey) {
  run_ranks(2, [](int64_t rank) {
    const auto seed = static_cast<uint64_t>(rank);
    at::manual_seed(seed);
    auto own = at::detail::createCPUGenerator(seed);
    for (int draw = 0; draw < 50; ++draw) {
      EXPECT_TRUE(at::equal(at::rand({3}), at::rand({3}, own)));
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
