// SPDX-License-Identifier: BSD-3-Clause
// Distributed tensors have the type at::Tensor, so LibTorch's templates, which
// compare types, accept them. DTensor wraps such a tensor.
#include <dtensor/dtensor.h>

#include <sstream>
#include <type_traits>

#include "support.h"
#include "tests/error_of.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

// y = 3x. Only the custom backward gives it a gradient.
struct Triple : torch::autograd::Function<Triple> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x) {
    context->saved_data["factor"] = 3.0;
    return x * 3;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list grads) {
    return {grads[0] * context->saved_data["factor"].toDouble()};
  }
};

// y = x * scale + shift, with a plain number between the tensors.
struct ScaleShift : torch::autograd::Function<ScaleShift> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      double scale,
      const at::Tensor& shift) {
    context->saved_data["scale"] = scale;
    return x * scale + shift;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list grads) {
    const auto scale = context->saved_data["scale"].toDouble();
    return {grads[0] * scale, {}, grads[0]};
  }
};

template <class Returned>
constexpr bool is_at_tensor = std::is_same_v<Returned, at::Tensor>;

TEST(TensorType, FunctionsReturnAtTensor) {
  static_assert(is_at_tensor<decltype(distribute_tensor({}))>);
  static_assert(is_at_tensor<decltype(replicate_tensor(at::Tensor()))>);
  static_assert(is_at_tensor<decltype(DTensor::from_local({}))>);
  static_assert(is_at_tensor<decltype(DTensor().redistribute({Shard(0)}))>);
  static_assert(is_at_tensor<decltype(redistribute({}, {Shard(0)}))>);
  static_assert(is_at_tensor<decltype(to_local(at::Tensor()))>);
  static_assert(is_at_tensor<decltype(full_tensor(at::Tensor()))>);
  static_assert(is_at_tensor<decltype(zeros({2}))>);
  static_assert(is_at_tensor<decltype(ones({2}))>);
  static_assert(is_at_tensor<decltype(full({2}, 1))>);
  static_assert(is_at_tensor<decltype(empty({2}))>);
  static_assert(is_at_tensor<decltype(dtensor::rand({2}))>);
  static_assert(is_at_tensor<decltype(dtensor::randn({2}))>);
}

template <class Fn>
void with_rows(const Fn& fn) {
  run_ranks(2, [&] {
    const auto mesh = mesh_of({2});
    fn(mesh, distribute_tensor(counting({4, 2}), mesh, {Shard(0)}));
  });
}

TEST(TensorType, GradientsPassThroughFunctions) {
  with_rows([](const DeviceMesh& mesh, at::Tensor x) {
    x.requires_grad_();
    Triple::apply(x).sum().backward();
    expect_same(whole(x.grad()), at::full({4, 2}, 3.0, at::kDouble));

    auto replicated = replicate_tensor(counting({2}), mesh).requires_grad_();
    ScaleShift::apply(x.detach(), 5.0, replicated).sum().backward();
    expect_same(whole(replicated.grad()), at::full({2}, 4.0, at::kDouble));
  });
}

TEST(TensorType, GradientsPassThroughFunctionsOfAView) {
  with_rows([](const DeviceMesh&, const at::Tensor& x) {
    DTensor view = x;
    view.requires_grad_();
    Triple::apply(view).sum().backward();
    expect_same(whole(x.grad()), at::full({4, 2}, 3.0, at::kDouble));

    x.mutable_grad().reset();
    const DTensor constant = x;
    ScaleShift::apply(constant, 5.0, constant).sum().backward();
    expect_same(whole(x.grad()), at::full({4, 2}, 6.0, at::kDouble));

    x.mutable_grad().reset();
    Triple::apply(DTensor(x)).sum().backward();
    expect_same(whole(x.grad()), at::full({4, 2}, 3.0, at::kDouble));
  });
}

TEST(TensorType, SequentialAndAnyModuleTakeThem) {
  with_rows([](const DeviceMesh& mesh, const at::Tensor& x) {
    torch::nn::Sequential model(torch::nn::ReLU{}, torch::nn::Flatten{});
    expect_same(whole(model->forward(x - 3)), (counting({4, 2}) - 3).relu());
    torch::nn::AnyModule any(torch::nn::ReLU{});
    expect_same(whole(any.forward(-x)), at::zeros({4, 2}, at::kDouble));
    const auto made = ones({3}, mesh, {Shard(0)}, {.dtype = at::kDouble});
    expect_same(whole(any.forward(made)), at::ones({3}, at::kDouble));
  });
}

TEST(TensorType, AVariableOfTheViewClassIsRefusedBySequential) {
  with_rows([](const DeviceMesh&, const at::Tensor& x) {
    torch::nn::Sequential model(torch::nn::ReLU{});
    const auto text = error_of<c10::Error>([&] { model->forward(DTensor(x)); });
    EXPECT_THAT(text, ::testing::HasSubstr("dtensor::DTensor")) << text;
    EXPECT_THAT(text, ::testing::HasSubstr("at::Tensor")) << text;
  });
}

// The module's forward has several signatures.
struct TwiceImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return x * 2;
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return x * 2 + y;
  }
};
DTENSOR_MODULE(Twice);

TEST(TensorType, HooksSeeThemAmongTheArgumentsOfSeveralForwards) {
  with_rows([](const DeviceMesh&, const at::Tensor& x) {
    Twice module;
    std::vector<size_t> seen;
    auto* hooks = dynamic_cast<ModuleHooks*>(module.get());
    hooks->add_forward_pre_hook([&](const auto& inputs) {
      seen.push_back(inputs.size());
      if (!inputs.empty()) {
        *inputs[0] = *inputs[0] + 1; // the copy, not the caller's tensor
      }
    });
    expect_same(whole(module->forward(x)), (counting({4, 2}) + 1) * 2);
    expect_same(
        whole(module->forward(x, x)), (counting({4, 2}) + 1) * 2 + whole(x));
    DTensor view = x;
    expect_same(whole(module->forward(view)), (counting({4, 2}) + 1) * 2);
    expect_same(
        whole(module->forward(DTensor(x), x)), whole(module->forward(x, view)));
    EXPECT_TRUE(view.is_same(x));
    EXPECT_EQ(seen, (std::vector<size_t>{1, 2, 1, 2, 2}));
  });
}

TEST(TensorType, ResultsAreAssignedToWhatWasDistributed) {
  with_rows([](const DeviceMesh& mesh, at::Tensor x) {
    x = torch::relu(x - 3);
    x = x.t();
    expect_same(whole(x), (counting({4, 2}) - 3).relu().t());

    DTensor view = distribute_tensor(counting({4, 2}), mesh, {Shard(0)});
    view = torch::relu(view - 3);
    EXPECT_EQ(to_string(view.placements()), "S(0)");
    view = view.t();
    EXPECT_EQ(to_string(view.placements()), "S(1)");
    DTensor other = torch::mm(view, view.t());
    EXPECT_EQ(to_string(other.placements()), "P(sum)");
  });
}

TEST(TensorType, AViewOfAPlainTensorIsRefused) {
  const auto refused = [](const auto& run) {
    EXPECT_EQ(
        error_of<c10::TypeError>(run),
        "[DTensor] the tensor is plain. Make it a DTensor with "
        "distribute_tensor or from_local.");
  };
  const auto plain = counting({2});
  refused([&] { DTensor view = plain; });
  refused([&] { to_local(plain); });
  refused([&] { redistribute(plain, {Replicate()}); });
  const auto takes_view = [](const DTensor& d) {
    return d.placements().size();
  };
  refused([&] { takes_view(plain); });
  with_rows([&](const DeviceMesh&, const at::Tensor& x) {
    EXPECT_EQ(takes_view(x), 1);
    DTensor view = x;
    refused([&] { view = plain; });
    EXPECT_TRUE(view.is_same(x));
  });
}

TEST(TensorType, ListsAndBindingsHoldThem) {
  with_rows([](const DeviceMesh& mesh, const at::Tensor& x) {
    auto y = zeros({4, 2}, mesh, {Shard(0)}, {.dtype = at::kDouble});
    const std::vector<at::Tensor> list = {x, y};
    const auto truth = at::cat({counting({4, 2}), at::zeros({4, 2})});
    expect_same(whole(torch::cat({x, y})), truth);
    expect_same(whole(torch::cat(list)), truth);
    expect_same(whole(torch::cat({DTensor(x), DTensor(y)})), truth);
    expect_same(whole(torch::stack({x, y})), truth.view({2, 4, 2}));
    const auto [values, places] = x.max(1);
    expect_same(whole(values), std::get<0>(counting({4, 2}).max(1)));
    expect_same(whole(places), std::get<1>(counting({4, 2}).max(1)));
    std::map<std::string, at::Tensor> by_name = {{"x", x}, {"y", y}};
    by_name["x"] = by_name["x"] * 2;
    expect_same(whole(by_name["x"]), counting({4, 2}) * 2);
    const std::optional<at::Tensor> maybe = x;
    EXPECT_TRUE(maybe->is_same(x));
    const c10::IValue boxed = x;
    EXPECT_TRUE(boxed.isTensor());
    y = x.defined() ? x : counting({2}); // one type for ?: to choose
    EXPECT_TRUE(is_dtensor(y));
  });
}

TEST(TensorType, OptimizersAndRegisteredParametersHoldThem) {
  with_rows([](const DeviceMesh&, const at::Tensor& x) {
    torch::nn::Module module;
    auto& weight = module.register_parameter("weight", x);
    torch::optim::SGD optimizer({weight}, 0.5);
    torch::optim::SGD of_module(module.parameters(), 0.5);
    weight.pow(2).sum().backward();
    optimizer.step();
    expect_same(whole(weight.detach()), at::zeros({4, 2}, at::kDouble));
  });
}

TEST(TensorType, SavingThemByLibTorchIsRefused) {
  with_rows([](const DeviceMesh&, const at::Tensor& x) {
    std::ostringstream out;
    EXPECT_THROW(torch::save(x, out), c10::Error);
    EXPECT_THROW(torch::save(std::vector<at::Tensor>{x}, out), c10::Error);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
