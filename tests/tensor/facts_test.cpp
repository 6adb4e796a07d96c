// SPDX-License-Identifier: BSD-3-Clause
// Assumptions of the design about LibTorch. Each test fails if a new LibTorch
// changes an assumption.
#include "support.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <dtensor/ops/registry.h>
#include <torch/script.h>

#include <sstream>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

DTensor make(const at::Tensor& full, const Placement& p = Shard(0)) {
  return placed(full, mesh_of({2}), {p});
}

// Composite explicit kernels take precedence over a backend fallback and read
// storage, so every such operator needs a kernel of dtensor.
TEST(Facts, EveryOperatorBelowAutogradHasOurSlot) {
  auto& dispatcher = c10::Dispatcher::singleton();
  int slots = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0 ||
        name.name.rfind("aten::_foreach_", 0) == 0 ||
        !op->hasKernelForDispatchKey(
            c10::DispatchKey::CompositeExplicitAutograd)) {
      continue;
    }
    if (op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse3)) {
      ++slots;
    } else {
      EXPECT_TRUE(RuleRegistry::global().keeps_composite(name)) << name;
    }
  }
  EXPECT_GT(slots, 500);
}

// celu is composite explicit, and runs dtensor's kernel.
TEST(Facts, ACompositeExplicitOperatorLandsInOurSlot) {
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::celu", "");
  EXPECT_TRUE(
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd));
  run_ranks(2, [] {
    const auto full = counting({5, 3}) - 7;
    expect_same(whole(at::celu(make(full))), at::celu(full));
  });
}

TEST(Facts, StockAutogradKernelsRunAboveOurSlots) {
  run_ranks(2, [] {
    auto d = make(counting({4}));
    d.requires_grad_();
    const auto out = d * d;
    EXPECT_EQ(out.grad_fn()->name(), "MulBackward0");
    out.backward(make(at::ones({4}, at::kDouble)));
    EXPECT_TRUE(is_dtensor(d.grad()));
    const auto keys = d.key_set();
    EXPECT_TRUE(keys.has(c10::DispatchKey::AutogradPrivateUse3));
    EXPECT_TRUE(keys.has(c10::DispatchKey::ADInplaceOrView));
    EXPECT_TRUE(keys.has(c10::DispatchKey::AutocastCPU));
    EXPECT_EQ(keys.highestPriorityTypeId(), c10::DispatchKey::AutocastCPU);
    EXPECT_EQ(
        c10::highestPriorityBackendTypeId(keys), c10::DispatchKey::PrivateUse3);
  });
}

class SetData : public testing::Test {
 protected:
  static torch::nn::Linear layer() {
    torch::nn::Linear linear(torch::nn::LinearOptions(4, 6).bias(false));
    const at::NoGradGuard no_grad;
    linear->to(at::kDouble);
    linear->weight.copy_(counting({6, 4}));
    return linear;
  }
  static void distribute(torch::nn::Linear& linear, const Placement& p) {
    linear->weight.set_data(make(linear->weight.detach(), p));
  }
};

TEST_F(SetData, TurnsTheSameTensorIntoADTensor) {
  run_ranks(2, [] {
    auto linear = layer();
    const auto tied = linear->weight;
    auto* const impl = linear->weight.unsafeGetTensorImpl();
    distribute(linear, Shard(0));
    EXPECT_EQ(linear->weight.unsafeGetTensorImpl(), impl);
    EXPECT_TRUE(is_dtensor(linear->weight));
    EXPECT_TRUE(is_dtensor(tied));
    EXPECT_TRUE(is_dtensor(linear->named_parameters()["weight"]));
    EXPECT_TRUE(linear->weight.requires_grad());
    EXPECT_TRUE(linear->weight.is_leaf());
    expect_same(whole(tied.detach()), counting({6, 4}));
  });
}

template <typename Optimizer>
void expect_optimizer_steps(
    const std::function<Optimizer(std::vector<at::Tensor>)>& make_optimizer) {
  run_ranks(2, [&] {
    const auto train = [&](bool distributed) {
      torch::nn::Linear linear(torch::nn::LinearOptions(4, 5));
      {
        const at::NoGradGuard no_grad;
        linear->to(at::kDouble);
        linear->weight.copy_(counting({5, 4}) / 20);
        linear->bias.copy_(counting({5}) / 5);
      }
      const auto parameters = linear->parameters();
      auto optimizer = make_optimizer(parameters);
      at::Tensor x = counting({3, 4}) / 12;
      if (distributed) {
        linear->weight.set_data(make(linear->weight.detach()));
        linear->bias.set_data(make(linear->bias.detach()));
        x = make(x, Replicate());
        if (std::is_same_v<Optimizer, torch::optim::Adagrad>) {
          optimizer = make_optimizer(parameters); // keeps state from the start
        }
      }
      for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        auto loss = linear->forward(x).pow(2).sum();
        if (distributed) {
          loss = whole(loss);
        }
        loss.backward();
        optimizer.step();
      }
      return distributed ? whole(linear->weight.detach())
                         : linear->weight.detach();
    };
    const auto mine = train(true);
    const auto truth = train(false);
    EXPECT_TRUE(at::allclose(mine, truth, 1e-12, 1e-12));
    EXPECT_FALSE(at::allclose(truth, counting({5, 4}) / 20));
  });
}

TEST_F(SetData, AnOptimizerThatHoldsTheParameterSeesIt) {
  expect_optimizer_steps<torch::optim::SGD>([](auto parameters) {
    return torch::optim::SGD(
        parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  expect_optimizer_steps<torch::optim::AdamW>([](auto parameters) {
    return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.1));
  });
  expect_optimizer_steps<torch::optim::Adagrad>([](auto parameters) {
    return torch::optim::Adagrad(parameters, torch::optim::AdagradOptions(0.1));
  });
}

TEST_F(SetData, ModulesCastAndClone) {
  run_ranks(2, [] {
    auto linear = layer();
    distribute(linear, Shard(0));
    const auto copy =
        std::dynamic_pointer_cast<torch::nn::LinearImpl>(linear->clone());
    EXPECT_TRUE(is_dtensor(copy->weight));
    EXPECT_TRUE(copy->weight.requires_grad());
    EXPECT_FALSE(DTensor(copy->weight.detach())
                     .to_local()
                     .is_alias_of(DTensor(linear->weight.detach()).to_local()));
    expect_same(whole(copy->weight.detach()), counting({6, 4}));

    linear->to(at::kFloat);
    EXPECT_EQ(spec_text(linear->weight), "f32[6, 4] on (a=2): S(0)");
    expect_same(whole(linear->weight.detach()), counting({6, 4}, at::kFloat));
  });
}

TEST(Facts, CompositeOperatorsWorkInInferenceMode) {
  run_ranks(2, [] {
    const c10::InferenceMode inference;
    const auto full = counting({4, 4});
    const auto d = make(full);
    EXPECT_FALSE(d.key_set().has(c10::DispatchKey::AutogradPrivateUse3));
    expect_same(whole(at::matmul(d, d)), at::matmul(full, full));
    expect_same(whole(at::linear(d, d)), at::linear(full, full));
  });
}

const char* const kNoData =
    "[DTensor] data_ptr() and storage() do not exist: a DTensor's data is "
    "spread over ranks. Call to_local() for the local tensor, or full_tensor() "
    "for the full tensor. To print a DTensor in C++, print DTensor(t). To save "
    "a model, call save_checkpoint (C++), or save what get_model_state_dict() "
    "returns with full_state_dict = true.";

TEST(Facts, ReadingDataGivesAdvice) {
  run_ranks(2, [] {
    const at::Tensor d = make(counting({4}));
    EXPECT_EQ(error_of([&] { d.data_ptr(); }), kNoData);
    EXPECT_EQ(error_of([&] { d.data_ptr<double>(); }), kNoData);
    EXPECT_EQ(error_of([&] { d.const_data_ptr<double>(); }), kNoData);
    EXPECT_EQ(error_of([&] { d.mutable_data_ptr(); }), kNoData);
    EXPECT_EQ(error_of([&] { d.storage(); }), kNoData);
    EXPECT_EQ(error_of([&] { d.accessor<double, 1>(); }), kNoData);
    EXPECT_EQ(
        error_of([&] {
          std::ostringstream out;
          out << d;
        }),
        kNoData);
  });
}

TEST(Facts, ReadingDataOfAParameterGivesAdvice) {
  run_ranks(2, [] {
    auto weight = counting({4}).requires_grad_();
    weight.set_data(make(weight.detach()));
    EXPECT_EQ(error_of([&] { weight.data_ptr(); }), kNoData);
    EXPECT_EQ(error_of([&] { weight.storage(); }), kNoData);
    EXPECT_FALSE(weight.has_storage());
  });
}

TEST(Facts, RanksRunBackwardThemselves) {
  run_ranks(2, [] {
    EXPECT_FALSE(
        c10::AutogradState::get_tls_state().get_multithreading_enabled());
  });
  EXPECT_TRUE(c10::AutogradState::get_tls_state().get_multithreading_enabled());
}

TEST(Facts, TorchScriptRunsOnParametersThatBecameDTensors) {
  run_ranks(2, [] {
    torch::jit::Module model("model");
    model.register_parameter("w", counting({4, 6}) / 24, /*is_buffer=*/false);
    model.define(R"(
      def forward(self, x):
        y = torch.relu(torch.matmul(x, self.w) - 1.5)
        return torch.softmax(y * 2.0, 1) + y.sum()
    )");
    const auto x = counting({3, 4}) / 6;
    const auto truth = model.forward({x}).toTensor();
    auto weight = model.attr("w").toTensor();
    weight.set_data(make(weight.detach(), Shard(1)));
    for (int i = 0; i < 3; ++i) { // the executor specializes in early runs
      const auto mine = model.forward({make(x, Replicate())}).toTensor();
      expect_same(whole(mine), truth);
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
