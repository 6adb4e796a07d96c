// SPDX-License-Identifier: BSD-3-Clause
// The claims of dtensor/torch_internals.h about LibTorch. A failing test after
// an upgrade names the claim that no longer holds.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DTensorState.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <dtensor/dtensor.h>
#include <dtensor/tensor/dispatch_keys_impl.h>
#include <dtensor/torch_nodes_impl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/error_of.h"

namespace dtensor {
namespace TEST_SOURCE {

using test_text::error_of;
using Names = std::vector<std::string>;

// Returns the names of the outermost operators that `run` calls.
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

// An unused backend key has LibTorch's kernels: its autograd above, its
// decompositions below, and no kernels of a device.
TEST(TorchInternals, StockKernels) {
  const auto add = find("aten::add", "Tensor");
  torch::jit::Stack stack = {
      at::ones({2}).requires_grad_(), at::ones({2}), at::Scalar(1)};
  const auto keys = c10::DispatchKeySet(c10::DispatchKey::AutogradCPU) |
      c10::DispatchKeySet(c10::DispatchKey::CPU);
  add.getComputedKernelForDispatchKey(detail::kUnusedAutogradKey)
      .callBoxed(add, keys, &stack);
  EXPECT_EQ(stack.back().toTensor().grad_fn()->name(), "AddBackward0");
  EXPECT_FALSE(add.hasKernelForDispatchKey(detail::kUnusedBackendKey));
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

// NodePtr holds nodes, and WeakNode holds them weakly.
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

// A node computes a gradient only if the graph task's info marks the receiving
// node as needed, and the info can be modified.
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

// A shape set without TensorImpl's own functions leaves no stale fields.
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

// set_data() calls an operator first, in which a fully_shard parameter keeps
// its source.
TEST(TorchInternals, DataIsSet) {
  const auto leaf = at::zeros({2}).requires_grad_();
  const auto data = at::ones({2});
  EXPECT_EQ(
      operators_of([&] { leaf.set_data(data); }).at(0),
      "aten::_has_compatible_shallow_copy_type");
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

// After a write to a view, the view's node has this name and strides through
// the base.
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

// Modules call these operators, which apply parallel styles.
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

// The key of implicit_replication has no kernels of other libraries. A thread's
// state propagates it.
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

// The interceptor's key has no kernels of other libraries. It precedes the meta
// backend, which would take precedence over DTensors.
TEST(TorchInternals, AskedFirstKey) {
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  EXPECT_FALSE(op.hasKernelForDispatchKey(detail::kInterceptKey));
  run_ranks(2, [] {
    const auto plain = at::empty({4, 4}, at::kMeta);
    const at::Tensor d = distribute_tensor(
        plain, init_device_mesh(at::kCPU, {2}, {"a"}), {Shard(0)});
    EXPECT_TRUE(d.key_set().has(detail::kInterceptKey));
    EXPECT_EQ(
        error_of([&] { plain + d; }).substr(0, 50),
        "[aten::add.Tensor] got mixed plain tensor and DTen");
  });
}

// Plain tensors on ranks draw from the rank's generator, not the process's.
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

// While ranks run, LibTorch's default generator is dtensor's. Afterwards it is
// the original one.
TEST(TorchInternals, DefaultGenerator) {
  const auto* const before =
      at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl();
  at::detail::getDefaultCPUGenerator(); // a reference to one variable
  run_ranks(2, [&](int64_t rank) {
    const at::Generator& now = at::detail::getDefaultCPUGenerator();
    EXPECT_NE(now.unsafeGetGeneratorImpl(), before);
    at::manual_seed(static_cast<uint64_t>(rank) + 7);
    EXPECT_EQ(now.current_seed(), static_cast<uint64_t>(rank) + 7);
    EXPECT_EQ(now.clone().current_seed(), static_cast<uint64_t>(rank) + 7);
  });
  EXPECT_EQ(
      at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl(), before);
  // The last byte of a state is unused, and so are the upper halves of words.
  auto generator = at::detail::createCPUGenerator(3);
  auto state = generator.get_state();
  const auto truth = at::randn({5}, generator);
  for (const int64_t last : {0, 0xAF, 0xFF}) {
    state[-1] = last;
    state.narrow(0, 24, 40).view({5, 8}).narrow(1, 4, 4).fill_(last);
    generator.set_state(state);
    EXPECT_TRUE(at::equal(at::randn({5}, generator), truth));
  }
}

// Queued callbacks run after all nodes, including those of other leaves, and
// outside of any node.
TEST(TorchInternals, EndsOfPasses) {
  struct Queues final : torch::autograd::Node {
    torch::autograd::variable_list apply(
        torch::autograd::variable_list&& grads) override {
      torch::autograd::Engine::get_default_engine().queue_callback([this] {
        EXPECT_TRUE(torch::autograd::get_current_node() == nullptr);
        at_the_end = leaf.grad();
      });
      return {grads[0]};
    }
    at::Tensor leaf;
    at::Tensor at_the_end;
  };
  const auto leaf = at::ones({2}).requires_grad_();
  const auto node = detail::make_node<Queues>();
  node->leaf = leaf;
  node->add_next_edge(torch::autograd::impl::gradient_edge(leaf));
  auto y = at::ones({2});
  torch::autograd::set_history(y, node);
  (y.sum() + leaf.exp().sum()).backward();
  EXPECT_TRUE(node->at_the_end.defined());
  EXPECT_TRUE(at::equal(node->at_the_end, leaf.grad()));
  EXPECT_TRUE(at::allclose(leaf.grad(), 1 + leaf.exp()));
  node->leaf = at::Tensor();
}

// The hook receives the leaf after its gradient is accumulated. A tensor has
// one such hook.
TEST(TorchInternals, HooksOfSums) {
  struct Doubles final : torch::autograd::PostAccumulateGradHook {
    void operator()(const torch::autograd::Variable& leaf) override {
      const at::NoGradGuard no_grad;
      leaf.mutable_grad().mul_(2);
    }
  };
  const auto leaf = at::ones({2}).requires_grad_();
  torch::autograd::impl::set_post_acc_grad_hooks(
      leaf, std::make_unique<Doubles>());
  leaf.sum().backward();
  leaf.sum().backward();
  EXPECT_TRUE(at::equal(leaf.grad(), at::full({2}, 6))); // (1 * 2 + 1) * 2
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
  EXPECT_EQ(torch::autograd::impl::post_acc_grad_hooks(leaf), nullptr);
}

TEST(TorchInternals, SavedTensors) {
  const auto written = at::ones({2});
  torch::autograd::SavedVariable saved(written, /*is_output=*/false);
  EXPECT_TRUE(saved.unpack().is_alias_of(written));
  written.add_(1);
  EXPECT_NE(
      error_of([&] { saved.unpack(); }).find("modified by an inplace"),
      std::string::npos);
  saved.reset_data();
  const auto again = at::ones({2});
  saved = torch::autograd::SavedVariable(again, /*is_output=*/false);
  EXPECT_TRUE(at::equal(saved.unpack(), again));
}

TEST(TorchInternals, WritesCount) {
  const auto one = at::ones({2});
  const auto other = at::zeros({3});
  auto& impl = *other.unsafeGetTensorImpl();
  impl.set_version_counter(one.unsafeGetTensorImpl()->version_counter());
  const auto before = one._version();
  one.add_(1);
  EXPECT_EQ(other._version(), before + 1);
  other.add_(1);
  EXPECT_EQ(one._version(), before + 2);
  const auto alias = at::Tensor(impl.shallow_copy_and_detach(
      one.unsafeGetTensorImpl()->version_counter(),
      /*allow_tensor_metadata_change=*/true));
  alias.add_(1);
  EXPECT_EQ(one._version(), before + 3);
}

TEST(TorchInternals, Boxing) {
  const auto x = at::ones({2});
  auto stack = c10::impl::boxArgs<const at::Tensor&, const at::Scalar&, double>(
      x, 2, 0.5);
  ASSERT_EQ(stack.size(), 3);
  EXPECT_TRUE(stack[0].toTensor().is_same(x));
  EXPECT_EQ(stack[1].toScalar().toLong(), 2);
  EXPECT_EQ(stack[2].toDouble(), 0.5);
  stack = {x, at::zeros({3})};
  using Pair = std::tuple<at::Tensor, at::Tensor>;
  const auto pair = c10::impl::PopResult<Pair>::call(stack);
  EXPECT_TRUE(std::get<0>(pair).is_same(x));
  EXPECT_EQ(std::get<1>(pair).numel(), 3);
}

// Ranks disable the cache of casts, because a lock of the whole process guards
// it.
TEST(TorchInternals, CastsAreKept) {
  const auto leaf = at::ones({2, 2}).requires_grad_();
  const auto cast = [&] {
    return at::autocast::cached_cast(at::kBFloat16, leaf, c10::kCPU);
  };
  {
    const Autocast scope(c10::kCPU, at::kBFloat16, true, true);
    EXPECT_TRUE(cast().is_same(cast()));
  }
  const Autocast scope(c10::kCPU, at::kBFloat16, true, false);
  EXPECT_FALSE(cast().is_same(cast()));
  run_ranks(1, [] { EXPECT_FALSE(at::autocast::is_autocast_cache_enabled()); });
}

// Such gradients have a NotImplemented node, and its text is the error that is
// thrown.
TEST(TorchInternals, MissingFormulas) {
  struct Looks final : torch::autograd::Node {
    torch::autograd::variable_list apply(
        torch::autograd::variable_list&& grads) override {
      missing = dynamic_cast<torch::autograd::NotImplemented*>(
          grads[0].grad_fn().get());
      if (missing != nullptr) {
        missing->msg = "in our words";
      }
      return {grads[0]};
    }
    torch::autograd::NotImplemented* missing = nullptr;
  };
  const auto leaf = at::ones({1, 1, 2, 2}).requires_grad_();
  const auto looks = detail::make_node<Looks>();
  looks->add_next_edge(torch::autograd::impl::gradient_edge(leaf));
  auto query = at::ones({1, 1, 2, 2});
  torch::autograd::set_history(query, looks);
  const auto others = at::ones({1, 1, 2, 2});
  const auto y = at::scaled_dot_product_attention(query, others, others);
  const auto grad =
      torch::autograd::grad({y.sum()}, {leaf}, {}, true, /*create_graph=*/true);
  ASSERT_NE(looks->missing, nullptr);
  try {
    grad[0].sum().backward();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::exception& error) { // its type depends on the version
    EXPECT_EQ(std::string(error.what()).rfind("in our words", 0), 0);
  }
}

TEST(TorchInternals, ViewsHoldBases) {
  const auto view = at::ones({2, 3}).t(); // the base has no other reference
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(view);
  ASSERT_NE(meta, nullptr);
  ASSERT_TRUE(meta->has_bw_view());
  EXPECT_EQ(meta->get_backward_view().base_.use_count(), 1);
  EXPECT_EQ(view.storage().use_count(), 2);
}

} // namespace TEST_SOURCE
} // namespace dtensor
