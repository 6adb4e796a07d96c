// SPDX-License-Identifier: BSD-3-Clause
// Operators without a rule give the same results on replicated tensors as on
// plain tensors, including gradients.
#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

const std::vector<std::vector<int64_t>> kMeshes{{2}, {3}, {2, 2}};

at::Tensor ints(at::IntArrayRef sizes, int64_t end, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randint(0, end, sizes, generator, at::kLong);
}

void check_replicated(const OpCase& c, const DeviceMesh& mesh, Failures& all) {
  const Placements whole(static_cast<size_t>(mesh.ndim()), Replicate());
  const std::vector<Placements> chosen(c.inputs.size(), whole);
  check_layouts(c, mesh, chosen, 0, all);
  check_layouts(c, mesh, chosen, 1, all);
  auto forward = c;
  forward.differentiable = false;
  {
    const torch::NoGradGuard no_grad;
    check_layouts(forward, mesh, chosen, 0, all);
  }
  const c10::InferenceMode inference;
  for (auto& t : forward.inputs) {
    t = t.clone();
  }
  check_layouts(forward, mesh, chosen, 0, all);
}

/// Checks all cases with gradients, without, and in inference mode.
void check_all(const std::vector<OpCase>& cases) {
  for (const auto& shape : kMeshes) {
    Failures failures;
    run_ranks(c10::multiply_integers(shape), [&] {
      const auto mesh = init_device_mesh(at::kCPU, shape);
      for (const auto& c : cases) {
        check_replicated(c, mesh, failures);
      }
    });
    EXPECT_EQ(failures.text(), "");
  }
}

OpCase values(OpCase c) {
  c.differentiable = false;
  return c;
}

TEST(Replicated, CompositeOperatorsRunUndecomposed) {
  const auto x = numbers({2, 3, 8}, 1);
  check_all({
      unary("max_pool1d", x, [](auto& t) { return at::max_pool1d(t, 2); }),
      unary("avg_pool1d", x, [](auto& t) { return at::avg_pool1d(t, 2); }),
      unary("trapezoid", x, [](auto& t) { return at::trapezoid(t, 0.3, 2); }),
      unary("nanmean", x, [](auto& t) { return at::nanmean(t, {1}); }),
      unary(
          "einsum",
          x,
          [](auto& t) {
            return at::einsum("bij,bkj->ik", {t, t});
          }),
      unary("diff", x, [](auto& t) { return at::diff(t); }),
      values(unary(
          "one_hot", ints({4}, 5, 2), [](auto& t) { return at::one_hot(t); })),
      {"bilinear",
       {numbers({3, 2}, 1), numbers({3, 4}, 2), numbers({5, 2, 4}, 3)},
       [](const TensorList& in) {
         return TensorList{at::bilinear(in[0], in[1], in[2], {})};
       }},
      {"conv1d",
       {x, numbers({4, 3, 3}, 2), numbers({4}, 3)},
       [](const TensorList& in) {
         return TensorList{at::conv1d(in[0], in[1], in[2], 1, "same")};
       }},
  });
}

// Convolutions and max pooling keep LibTorch's decomposition, also on
// replicated tensors.
TEST(Replicated, ConvolutionsAreDecomposed) {
  const auto weight = numbers({4, 3, 3}, 2);
  const auto convolve = [](const TensorList& in) {
    return TensorList{at::conv1d(in[0], in[1])};
  };
  check_all({
      {"batch", {numbers({2, 3, 8}, 1), weight}, convolve},
      {"without a batch", {numbers({3, 8}, 1), weight}, convolve},
      {"no samples", {numbers({0, 3, 8}, 1), weight}, convolve},
      {"complex numbers",
       {numbers({2, 3, 8}, 1), weight},
       [](const TensorList& in) {
         const auto turned = [](const at::Tensor& t) {
           return at::complex(t, 2 * t);
         };
         return TensorList{at::real(at::conv1d(turned(in[0]), turned(in[1])))};
       }},
      unary(
          "max_pool2d",
          numbers({3, 4, 6}, 1),
          [](auto& t) { return at::max_pool2d(t, 2); }),
  });
}

TEST(Replicated, SpectraMatchThePlainSignal) {
  const auto window = at::hann_window(8, at::kDouble);
  const auto spectrum = [](const at::Tensor& x, const at::Tensor& w) {
    return at::stft(x, 8, 4, 8, w, true, "reflect", false, std::nullopt, true);
  };
  check_all({
      {"stft",
       {numbers({2, 32}, 1), window},
       [&](const TensorList& in) {
         return TensorList{
             at::view_as_real(spectrum(in[0], in[1].detach())).clone()};
       }},
      values(
          {"istft",
           {numbers({2, 32}, 1), window},
           [&](const TensorList& in) {
             const auto w = in[1].detach();
             return TensorList{at::istft(spectrum(in[0], w), 8, 4, 8, w)};
           }}),
  });
}

// Products of zeros are twice differentiable. The gradient of prod is correct
// in any layout. The gradient of this gradient is that of cumprod.
TEST(Replicated, ProductsOfZerosAreTwiceDifferentiable) {
  const auto plain = torch::tensor(
      {{1.0, 0.0, 2.0, 3.0}, {0.0, 1.0, 0.0, 2.0}, {1.0, 2.0, 4.0, 0.5}},
      at::kDouble);
  using Product = at::Tensor (*)(const at::Tensor&);
  const Product products[] = {
      [](const at::Tensor& t) { return at::prod(t); },
      [](const at::Tensor& t) { return at::prod(t[0]); },
      [](const at::Tensor& t) { return at::prod(t, 1).sum(); }};
  for (const auto& product : products) {
    const auto twice = [&](const at::Tensor& x) {
      const auto first =
          torch::autograd::grad({product(x)}, {x}, {}, true, true)[0];
      return torch::autograd::grad({first.pow(2).sum()}, {x})[0];
    };
    const auto truth = twice(plain.clone().requires_grad_());
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2});
      const auto mine = twice(leaf(place(plain, mesh, {Replicate()})));
      EXPECT_TRUE(same(truth, DTensor(mine).full_tensor()));
    });
  }
}

TEST(Replicated, FormulasThatMakePlainTensorsComputeGradients) {
  const auto with_zeros = torch::tensor(
      {{1.0, 0.0, 2.0, 3.0}, {0.0, 1.0, 0.0, 2.0}, {1.0, 2.0, 4.0, 0.5}},
      at::kDouble);
  check_all({
      unary("trace", numbers({3, 4}, 1), [](auto& t) { return at::trace(t); }),
      unary("prod", with_zeros, [](auto& t) { return at::prod(t); }),
      unary("prod dim", with_zeros, [](auto& t) { return at::prod(t, 1); }),
      unary("cumprod", with_zeros, [](auto& t) { return at::cumprod(t, 1); }),
      unary(
          "affine_grid",
          numbers({2, 2, 3}, 1),
          [](auto& t) {
            return at::affine_grid_generator(t, {2, 1, 4, 4}, true);
          }),
      unary(
          "circular pad",
          numbers({2, 3, 6}, 1),
          [](auto& t) {
            return at::pad(t, {2, 1}, "circular");
          }),
      unary(
          "reflection pad",
          numbers({2, 3, 6}, 1),
          [](auto& t) {
            return at::pad(t, {2, 1}, "reflect");
          }),
      {"pad_sequence",
       {numbers({2, 3}, 1), numbers({4, 3}, 2)},
       [](const TensorList& in) {
         return TensorList{at::pad_sequence({in[0], in[1]})};
       }},
      {"pack_padded_sequence",
       {numbers({4, 3, 2}, 1), at::tensor({4, 2, 1}, at::kLong)},
       [](const TensorList& in) {
         const auto packed =
             torch::nn::utils::rnn::pack_padded_sequence(in[0], in[1]);
         const auto [data, lengths] =
             torch::nn::utils::rnn::pad_packed_sequence(packed);
         return TensorList{data * 2};
       }},
      {"pack_padded_sequence of any order",
       {numbers({4, 3, 2}, 1), at::tensor({2, 4, 1}, at::kLong)},
       [](const TensorList& in) {
         const auto packed = torch::nn::utils::rnn::pack_padded_sequence(
             in[0], in[1], /*batch_first=*/false, /*enforce_sorted=*/false);
         const auto [data, lengths] =
             torch::nn::utils::rnn::pad_packed_sequence(packed);
         return TensorList{data * 2, packed.data() * 3};
       }},
  });
}

// In-place forms compute the gradients of the functional forms, and write the
// result.
TEST(Replicated, FormulasThatMakePlainTensorsComputeGradientsInPlace) {
  const auto put = [](bool accumulate) {
    return [=](const TensorList& in) {
      auto y = in[0] * 2;
      y.put_(in[2] * 5, in[1], accumulate);
      return TensorList{y * in[0]};
    };
  };
  const auto on_view = [](const TensorList& in) {
    const auto y = in[0] * 2;
    y.select(0, 1).put_(in[2], in[1]);
    return TensorList{y * in[0]};
  };
  const TensorList inputs = {
      numbers({4, 3}, 1), numbers({2}, 2), at::tensor({0, 1}, at::kLong)};
  check_all(
      {{"put_", inputs, put(false)},
       {"put_ accumulating", inputs, put(true)},
       {"put_ into a view", inputs, on_view}});
}

TEST(Replicated, GammaFunctionsInPlaceAlsoInShards) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto run = [](const at::Tensor& x) {
      auto y = x * 2;
      const auto version = y._version();
      auto& result = y.mvlgamma_(2);
      EXPECT_TRUE(result.is_same(y));
      EXPECT_EQ(y._version(), version + 1);
      return torch::autograd::grad({y.sum()}, {x})[0];
    };
    const auto x = numbers({3, 2}, 1).abs() + 2;
    for (const Placement& p : {Placement(Replicate()), Placement(Shard(0))}) {
      const auto d = leaf(place(x, mesh, {p}));
      EXPECT_TRUE(at::allclose(run(leaf(x)), DTensor(run(d)).full_tensor()));
      EXPECT_NE(
          error_of([&] { d.mvlgamma_(2); }).find("a leaf Variable that"),
          std::string::npos);
    }
  });
}

// Zeros that an operator makes from sizes alone are distributed, for example
// the result for an empty matrix.
TEST(Replicated, ResultsMadeOfSizesAloneAreDistributed) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto empty = at::zeros({2, 0, 3}, at::kDouble);
    for (const Placement& p : {Placement(Replicate()), Placement(Shard(0))}) {
      const auto rank = at::linalg_matrix_rank(
          place(empty, mesh, {p}), std::optional(0.5), std::nullopt, false);
      EXPECT_TRUE(same(
          at::linalg_matrix_rank(empty, 0.5), DTensor(rank).full_tensor()));
    }
  });
}

TEST(Replicated, TensorSplitReadsWhereToSplit) {
  const auto pieces = [](const TensorList& in) {
    return at::tensor_split(in[0], in[1], 0);
  };
  check_all(
      {{"at indices",
        {numbers({5, 2}, 1), at::tensor({1, 3}, at::kLong)},
        pieces},
       {"in sections",
        {numbers({5, 2}, 1), at::scalar_tensor(2, at::kLong)},
        pieces}});
}

// An operator's result that turns out to be a view stays a view. A write
// through the result reaches the operand and its gradient.
TEST(Replicated, AnOperatorThatTurnsOutAViewStaysOne) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto run = [](const at::Tensor& x) {
      const auto y = x * 2;
      y.sum_to_size({3, 2}).mul_(3);
      return torch::autograd::grad({y.sum()}, {x})[0];
    };
    const auto x = numbers({3, 2}, 1);
    const auto d = leaf(place(x, mesh, {Replicate()}));
    EXPECT_TRUE(same(run(leaf(x)), DTensor(run(d)).full_tensor()));
  });
}

TEST(Replicated, ShardsKeepTheDecomposition) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = numbers({4, 3}, 1);
    const auto y = at::diff(place(x, mesh, {Shard(0)}));
    EXPECT_EQ(to_string(DTensor(y).placements()), "S(0)");
    EXPECT_TRUE(same(at::diff(x), DTensor(y).full_tensor()));
  });
}

TEST(Replicated, RefusesResultsThatAreNotDense) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x =
        place(numbers({4, 3}, 1), mesh, {Replicate()}).to(at::kFloat);
    const auto error = [](const auto& fn) {
      return error_of<c10::NotImplementedError>(fn);
    };
    const std::string begin = " returns a tensor of layout ";
    const std::string end =
        ", which DTensors do not support. Call it on the local tensors";
    EXPECT_EQ(
        error([&] { x._to_sparse(); }),
        "[aten::_to_sparse]" + begin + "Sparse" + end + ".");
    EXPECT_EQ(
        error([&] { at::zeros_like(x, at::TensorOptions(at::kSparse)); }),
        "[aten::zeros_like] the result would have layout Sparse, which "
        "DTensors "
        "do not support. Leave out the argument \"layout\".");
    if (at::hasMKLDNN()) {
      EXPECT_EQ(
          error([&] { x.to_mkldnn(); }),
          "[aten::to_mkldnn]" + begin + "Mkldnn" + end + ".");
    }
  });
}

TEST(Replicated, RefusesNestedResults) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(numbers({2, 5, 3}, 1), mesh, {Replicate()});
    const auto mask = place(at::ones({2, 5}, at::kBool), mesh, {Replicate()});
    const std::string text =
        "[aten::_nested_tensor_from_mask] returns a nested tensor, which "
        "DTensors do not support. Call it on the local tensors, or create "
        "TransformerEncoder with enable_nested_tensor = False (Python).";
    EXPECT_EQ(error_of([&] { at::_nested_tensor_from_mask(x, mask); }), text);
  });
}

TEST(Replicated, APlainOperandIsStillAnError) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto d = place(numbers({3, 2}, 1), mesh, {Replicate()});
    const auto text = error_of([&] {
      at::bilinear(d, numbers({3, 4}, 2), numbers({5, 2, 4}, 3), {});
    });
    EXPECT_NE(text.find("got mixed plain tensor and DTensor"), text.npos)
        << text;
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
