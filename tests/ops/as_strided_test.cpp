// SPDX-License-Identifier: BSD-3-Clause
// Tests of as_strided, which strides through the memory of the corresponding
// plain tensor, and of set_, which gives a tensor the memory of another tensor.
#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

at::Tensor whole(const at::Tensor& t) {
  return is_dtensor(t) ? DTensor(t).full_tensor() : t;
}

TEST(AsStrided, IsWhatItIsOfThePlainTensorInEveryLayout) {
  check_cases({
      {"of rows",
       {numbers({4, 6}, 1)},
       [](auto& in) -> TensorList {
         return {in[0].as_strided({2, 3}, {12, 2}, 1)};
       }},
      {"windows",
       {numbers({4, 6}, 1)},
       [](auto& in) -> TensorList {
         return {in[0].as_strided({20, 5}, {1, 1})};
       }},
      {"of a transposed tensor",
       {numbers({4, 6}, 1)},
       [](auto& in) -> TensorList {
         return {in[0].t().contiguous().t().as_strided({3, 2}, {2, 7}, 2)};
       }},
      {"nothing",
       {numbers({4, 6}, 1)},
       [](auto& in) -> TensorList {
         return {in[0].as_strided({0, 2}, {1, 1})};
       }},
      {"one element",
       {numbers({4, 6}, 1)},
       [](auto& in) -> TensorList { return {in[0].as_strided({}, {}, 23)}; }},
      {"of an uneven tensor",
       {numbers({3, 2}, 1)},
       [](auto& in) -> TensorList { return {in[0].as_strided({2}, {5})}; }},
  });
}

TEST(AsStrided, UnshardedDimensionsAreViewed) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = numbers({4, 6}, 1);
    for (const auto& layout :
         std::vector<Placements>{{Replicate()}, {Partial()}}) {
      const at::Tensor x = place(plain.clone(), mesh, layout);
      const auto rows = x.narrow(0, 1, 3);
      EXPECT_EQ(rows.storage_offset(), 6);
      const auto strided = rows.as_strided({2, 3}, {6, 2});
      const auto truth = plain.clone();
      const auto part = truth.narrow(0, 1, 3).as_strided({2, 3}, {6, 2});
      EXPECT_TRUE(at::equal(whole(strided), part));
      strided.zero_();
      part.zero_();
      EXPECT_TRUE(at::equal(whole(x), truth));
    }
  });
}

TEST(AsStrided, OfShardsIsWrittenThrough) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const at::Tensor x = place(numbers({4, 6}, 1), mesh, {Shard(0)});
    x.as_strided({6, 2}, {1, 6}).zero_();
    auto truth = numbers({4, 6}, 1);
    truth.narrow(0, 0, 2).zero_();
    EXPECT_TRUE(at::equal(whole(x), truth));
  });
}

TEST(AsStrided, MemoryThatIsNotOfTheTensorIsRefused) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const at::Tensor x = place(numbers({4, 6}, 1), mesh, {Shard(0)});
    EXPECT_EQ(
        error_of([&] { x.narrow(1, 0, 2).as_strided({6}, {1}); }),
        "[aten::as_strided] a DTensor has no storage to stride through: "
        "f64[4, 2; 6, 1] on (tp=2): S(0) as [6] with strides [1] and offset 0. "
        "Use view, transpose, select or slice, or as_strided on to_local().");
    EXPECT_EQ(
        error_of([&] {
          x.as_strided_({6, 4}, {1, 6});
        }),
        "[aten::as_strided] a DTensor has no storage to stride through: "
        "f64[4, 6] on (tp=2): S(0) as [6, 4] with strides [1, 6] and offset 0. "
        "Use as_strided, which returns another tensor.");
  });
}

// A write to such a view is visible in the base. LibTorch's autograd
// regenerates the view by its strides after the write.
TEST(AsStrided, AWriteToAViewOfAComplexTensorIsSeenByIt) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    for (const auto& layout : layouts(2, 2, true)) {
      const auto run = [](at::Tensor x) {
        x.requires_grad_();
        const auto z = at::complex(x, x * 3);
        at::view_as_real(z).unsqueeze(1).mul_(2);
        at::real(z).mul_(-1);
        const auto y = at::view_as_real(z);
        const auto gradient = torch::autograd::grad({(y * y).sum()}, {x})[0];
        return at::stack({whole(at::real(z)), whole(gradient)}).detach();
      };
      const auto plain = numbers({4, 6}, 1);
      EXPECT_TRUE(
          at::equal(run(place(plain, mesh, layout)), run(plain.clone())))
          << to_string(layout);
    }
  });
}

TEST(Set, TakesTheMemoryAndTheLayoutOfTheSource) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto from = numbers({3, 2}, 1);
    auto x = place(numbers({4, 6}, 2), mesh, {Shard(0)}).requires_grad_();
    const auto source = place(from, mesh, {Shard(1)});
    {
      const at::NoGradGuard no_grad;
      x.set_(source);
      x.mul_(3);
    }
    EXPECT_TRUE(x.is_leaf() && x.requires_grad());
    EXPECT_EQ(DTensor(x).placements(), Placements{Shard(1)});
    EXPECT_TRUE(at::equal(whole(x), from * 3));
    EXPECT_TRUE(at::equal(whole(source), from * 3));
    x.sum().backward();
    EXPECT_TRUE(at::equal(whole(x.grad()), at::ones_like(from)));
  });
}

TEST(Set, RefusesPlainTensorsAndOtherDtypes) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({4, 6}, 1), mesh, {Shard(0)});
    EXPECT_EQ(
        error_of([&] { x.set_(x.to(at::kFloat)); }),
        "[aten::set_] cannot set f64[4, 6] on (2): S(0) to f32[4, 6] on (2): "
        "S(0). Both must be DTensors of the same dtype.");
    EXPECT_EQ(
        error_of([&] { x.set_(numbers({1}, 1)); }),
        "[aten::set_] cannot set f64[4, 6] on (2): S(0) to f64[1]. Both must "
        "be "
        "DTensors of the same dtype.");
    EXPECT_THAT(
        error_of([&] {
          x.set_(numbers({4, 6}, 1));
        }),
        ::testing::HasSubstr("got mixed plain tensor and DTensor"));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
