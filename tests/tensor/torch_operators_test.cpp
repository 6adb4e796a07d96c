// SPDX-License-Identifier: BSD-3-Clause
// The claims of dtensor/torch_internals.h about LibTorch's operators, their
// nodes and their backward passes.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <dtensor/dtensor.h>
#include <dtensor/torch_nodes_impl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu.h"

namespace dtensor {
namespace TEST_SOURCE {

using torch::autograd::variable_list;

// A node without the edges of the other operands computes the same gradient for
// one operand, and none for the others.
void expect_alone(const at::Tensor& product, const char* name) {
  const auto node = product.grad_fn();
  EXPECT_EQ(node->name(), name);
  const auto grad = at::randn_like(product);
  const auto all = (*node)(variable_list{grad});
  const auto edges = node->next_edges();
  for (size_t k = 0; k < edges.size(); ++k) {
    for (size_t other = 0; other < edges.size(); ++other) {
      node->next_edges()[other] =
          other == k ? edges[k] : torch::autograd::Edge();
    }
    const auto alone = (*node)(variable_list{grad});
    ASSERT_EQ(alone.size(), edges.size()) << name;
    for (size_t other = 0; other < edges.size(); ++other) {
      EXPECT_EQ(alone[other].defined(), other == k) << name;
    }
    EXPECT_TRUE(at::equal(alone[k], all[k])) << name;
  }
}

TEST(TorchInternals, ProductNodes) {
  const auto leaf = [](at::IntArrayRef sizes) {
    return at::randn(sizes, at::kDouble).requires_grad_();
  };
  const auto a = leaf({2, 3});
  const auto b = leaf({3, 4});
  expect_alone(at::mm(a, b), "MmBackward0");
  expect_alone(at::addmm(leaf({4}), a, b), "AddmmBackward0");
  expect_alone(at::bmm(leaf({5, 2, 3}), leaf({5, 3, 4})), "BmmBackward0");
}

// An operator has a single autograd kernel for all backends. The CPU's kernel
// also records DTensors, and continues to their own kernels.
TEST(TorchInternals, AutogradOfCpu) {
  run_ranks(1, [] {
    const auto mesh = init_device_mesh(at::kCPU, {1});
    const auto x = distribute_tensor(at::ones({2, 2}), mesh, {Shard(0)});
    const at::Tensor operand = at::Tensor(x).detach().requires_grad_();
    const auto mm =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
    torch::jit::Stack stack = {operand, operand};
    const auto keys = c10::DispatchKeySet(detail::kDTensorAutogradKey) |
        c10::DispatchKeySet(detail::kDTensorKey);
    mm.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradCPU)
        .callBoxed(mm, keys, &stack);
    const auto result = stack.back().toTensor();
    ASSERT_TRUE(is_dtensor(result));
    EXPECT_EQ(result.grad_fn()->name(), "MmBackward0");
  });
}

// A leaf keeps its accumulator while there is a reference to it, and creates a
// new accumulator after a reset.
TEST(TorchInternals, Accumulators) {
  namespace impl = torch::autograd::impl;
  const auto leaf = at::ones({2}).requires_grad_();
  EXPECT_TRUE(impl::try_get_grad_accumulator(leaf) == nullptr);
  const auto first = impl::gradient_edge(leaf).function;
  EXPECT_TRUE(impl::try_get_grad_accumulator(leaf) == first);
  impl::set_grad_accumulator(leaf, detail::WeakNode(detail::NodePtr()));
  EXPECT_TRUE(impl::try_get_grad_accumulator(leaf) == nullptr);
  const auto second = impl::gradient_edge(leaf).function;
  EXPECT_FALSE(second == first);
  leaf.sum().backward();
  EXPECT_TRUE(at::equal(leaf.grad(), at::ones({2})));
}

// The node and output number of a tensor without history can be set.
TEST(TorchInternals, EdgesAreGiven) {
  const auto leaf = at::ones({2}).requires_grad_();
  const auto parts = at::split(leaf * 2, 1);
  const auto given = at::zeros({1});
  torch::autograd::impl::set_gradient_edge(
      given, torch::autograd::impl::gradient_edge(parts[1]));
  EXPECT_TRUE(given.grad_fn() == parts[1].grad_fn());
  EXPECT_EQ(given.output_nr(), 1);
  given.sum().backward();
  EXPECT_TRUE(at::equal(leaf.grad(), at::tensor({0.0F, 2.0F})));
}

// Nodes and hooks see the graph task's id. A nested backward pass has another
// id, and outside of passes the id is -1.
TEST(TorchInternals, PassesHaveNumbers) {
  const auto number = [] {
    return torch::autograd::get_current_graph_task_id();
  };
  const auto leaf = at::ones({2}).requires_grad_();
  std::vector<int> seen;
  int inside = -1;
  const auto last = leaf * 2;
  last.register_hook([&](const at::Tensor&) { seen.push_back(number()); });
  const auto y = last * 3;
  y.register_hook([&](const at::Tensor&) {
    seen.push_back(number());
    const at::AutoGradMode enabled(true);
    const auto other = at::ones({2}).requires_grad_();
    const auto z = other * 2;
    z.register_hook([&](const at::Tensor&) { inside = number(); });
    z.sum().backward();
    seen.push_back(number());
  });
  leaf.register_hook([&](const at::Tensor&) { seen.push_back(number()); });
  EXPECT_EQ(number(), -1);
  y.sum().backward();
  EXPECT_EQ(number(), -1);
  ASSERT_EQ(seen.size(), 4);
  EXPECT_NE(seen[0], -1);
  EXPECT_EQ(seen, std::vector<int>(4, seen[0]));
  EXPECT_NE(inside, -1);
  EXPECT_NE(inside, seen[0]);
}

// On a rank backward passes stay in its thread; by default LibTorch uses a
// thread per device.
TEST(TorchInternals, PassesInThreads) {
  run_ranks(1, [] {
    EXPECT_FALSE(
        c10::AutogradState::get_tls_state().get_multithreading_enabled());
    const auto device = test::gpus() > 0 ? test::take_gpu(0) : at::kCPU;
    const auto y = at::ones({2}, device).requires_grad_() * 2;
    std::thread::id ran;
    y.register_hook(
        [&](const at::Tensor&) { ran = std::this_thread::get_id(); });
    y.sum().backward();
    EXPECT_EQ(ran, std::this_thread::get_id());
  });
}

struct Attended {
  explicit Attended(int64_t length) {
    const auto leaf = [&](int64_t count) {
      return at::randn({2, 3, count, 4}, at::kDouble).requires_grad_();
    };
    query = leaf(6);
    key = leaf(length);
    value = leaf(length);
  }
  at::Tensor scores(bool causal) const {
    const auto all = at::matmul(query * 0.5, key.transpose(-2, -1));
    const auto unseen =
        at::ones({query.size(2), key.size(2)}, at::kBool).tril().logical_not();
    return causal
        ? all.masked_fill(unseen, -std::numeric_limits<double>::infinity())
        : all;
  }
  at::Tensor out(bool causal) const {
    return at::matmul(at::softmax(scores(causal), -1), value);
  }
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

TEST(TorchInternals, PlainAttention) {
  const Attended x(6);
  for (const bool causal : {false, true}) {
    const auto [out, weights] = at::_scaled_dot_product_attention_math(
        x.query, x.key, x.value, {}, 0, causal, {}, 0.5);
    EXPECT_TRUE(at::allclose(out, x.out(causal)));
    EXPECT_TRUE(at::allclose(weights, at::softmax(x.scores(causal), -1)));
  }
}

// The kernel's second result is the logsumexp of the scores, one per row of
// queries.
TEST(TorchInternals, AttentionRows) {
  const at::NoGradGuard no_grad;
  const Attended x(6);
  for (const bool causal : {false, true}) {
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        x.query, x.key, x.value, 0, causal, {}, 0.5);
    const auto truth = at::logsumexp(x.scores(causal), -1);
    EXPECT_TRUE(at::allclose(out, x.out(causal)));
    EXPECT_EQ(lse.sizes(), truth.sizes());
    EXPECT_TRUE(at::allclose(lse, truth));
  }
}

// The backward kernel can be called with a subset of the keys. With the result
// and logsumexp of all keys it returns the gradients for that subset.
TEST(TorchInternals, AttentionInBlocks) {
  const Attended x(8);
  const auto out = x.out(false);
  const auto grad = at::randn_like(out);
  const auto truth =
      torch::autograd::grad({out}, {x.query, x.key, x.value}, {grad});
  const at::NoGradGuard no_grad;
  const auto lse = at::logsumexp(x.scores(false), -1);
  auto of_query = at::zeros_like(x.query);
  for (const int64_t begin : {0, 4}) {
    const auto block = [&](const at::Tensor& t) {
      return t.narrow(2, begin, 4);
    };
    const auto [query, key, value] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            grad,
            x.query,
            block(x.key),
            block(x.value),
            out,
            lse,
            0,
            false,
            {},
            0.5);
    of_query += query;
    EXPECT_TRUE(at::allclose(key, block(truth[1])));
    EXPECT_TRUE(at::allclose(value, block(truth[2])));
  }
  EXPECT_TRUE(at::allclose(of_query, truth[0]));
}

// A wrapped number does not affect type promotion, with data or on the meta
// device. A copy of it is an ordinary tensor until it is marked as wrapped.
TEST(TorchInternals, WrappedNumbers) {
  for (const auto device : {at::kCPU, at::kMeta}) {
    const auto number = at::zeros({}, at::device(device).dtype(at::kDouble));
    const auto floats = at::ones({}, device);
    const auto integers = at::ones({2}, at::device(device).dtype(at::kLong));
    EXPECT_EQ((floats + number).scalar_type(), at::kDouble);
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    EXPECT_EQ((floats + number).scalar_type(), at::kFloat);
    EXPECT_EQ((integers + number).scalar_type(), at::kFloat);
    EXPECT_EQ(at::result_type(floats, number), at::kFloat);
    EXPECT_FALSE(number.clone().unsafeGetTensorImpl()->is_wrapped_number());
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
