// SPDX-License-Identifier: BSD-3-Clause
// Creation of tensors, from another tensor or from sizes.
#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

OpCase made(std::string name, std::function<at::Tensor(const at::Tensor&)> fn) {
  auto c = unary(std::move(name), numbers({5, 3}, 1), std::move(fn));
  c.differentiable = false;
  return c;
}

TEST(Creation, MakesTensorsLikeAnother) {
  check_cases({
      made("zeros_like", [](auto& t) { return at::zeros_like(t); }),
      made("ones_like", [](auto& t) { return at::ones_like(t); }),
      made("full_like", [](auto& t) { return at::full_like(t, 2.5); }),
      made(
          "ones_like int", [](auto& t) { return at::ones_like(t, at::kLong); }),
      made("empty_like", [](auto& t) { return at::empty_like(t).zero_(); }),
      made(
          "new_zeros",
          [](auto& t) {
            return t.new_zeros({5, 3});
          }),
      made(
          "new_zeros else",
          [](auto& t) {
            return t.new_zeros({2, 7});
          }),
      made(
          "new_ones",
          [](auto& t) {
            return t.new_ones({5, 3});
          }),
      made("new_full", [](auto& t) { return t.new_full({3}, 1.5); }),
      made(
          "new_full same",
          [](auto& t) {
            return t.new_full({5, 3}, 1.5);
          }),
      made(
          "new_empty",
          [](auto& t) {
            return t.new_empty({5, 3}).zero_();
          }),
      made(
          "new_empty_strided",
          [](auto& t) {
            return t.new_empty_strided({5, 3}, {1, 5}).zero_();
          }),
  });
}

TEST(Creation, FollowsTheLayoutWithoutCommunication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const at::Tensor s = place(numbers({5, 3}, 1), mesh, {Shard(0)});
    const at::Tensor p =
        place(numbers({5, 3}, 1), mesh, {Partial(ReduceOp::kSum)});
    CountCollectives collectives;
    const auto layout = [](const at::Tensor& t) {
      return to_string(DTensor(t).placements());
    };
    EXPECT_EQ(layout(at::ones_like(s)), "S(0)");
    EXPECT_EQ(layout(at::zeros_like(p)), "R");
    EXPECT_EQ(layout(at::empty_like(p)), "P(sum)");
    EXPECT_EQ(layout(at::ones_like(p)), "R");
    EXPECT_EQ(layout(at::full_like(p, 0)), "R");
    EXPECT_EQ(layout(s.new_zeros({5, 3})), "S(0)");
    EXPECT_EQ(layout(p.new_zeros({5, 3})), "R");
    EXPECT_EQ(layout(s.new_zeros({3, 5})), "R");
    EXPECT_EQ(layout(p.new_ones({2})), "R");
    EXPECT_EQ(collectives.count(), 0);
  });
}

TEST(Creation, MakesTensorsFromNothing) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    CountCollectives collectives;
    const auto z = zeros({5, 3}, mesh, {Shard(0), Replicate()});
    EXPECT_EQ(
        to_string(*DTensor(z).spec()), "f32[5, 3] on (dp=2, tp=2): S(0) R");
    const auto o =
        ones({5, 3}, mesh, {Shard(0), Shard(1)}, {.dtype = at::kDouble});
    EXPECT_EQ(
        to_string(*DTensor(o).spec()), "f64[5, 3] on (dp=2, tp=2): S(0) S(1)");
    const auto f = full({4}, 7, mesh, {}, {.dtype = at::kFloat});
    EXPECT_EQ(to_string(*DTensor(f).spec()), "f32[4] on (dp=2, tp=2): R R");
    const auto w = full({4}, 0.5, mesh, {}, {.requires_grad = true});
    EXPECT_TRUE(w.requires_grad());
    EXPECT_EQ(full({2}, 7, mesh).scalar_type(), at::kLong);
    EXPECT_EQ(full({2}, true, mesh).scalar_type(), at::kBool);
    EXPECT_EQ(
        to_string(*DTensor(empty({0, 3}, mesh, {Shard(0), Shard(0)})).spec()),
        "f32[0, 3] on (dp=2, tp=2): S(0) S(0)");
    EXPECT_EQ(collectives.count(), 0);
    EXPECT_TRUE(at::equal(full_tensor(z), at::zeros({5, 3})));
    EXPECT_TRUE(at::equal(full_tensor(o), at::ones({5, 3}, at::kDouble)));
    EXPECT_TRUE(at::equal(full_tensor(f), at::full({4}, 7.0f)));
  });
}

TEST(Creation, SaysWhatItCannotMake) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    EXPECT_EQ(
        error_of([&] { ones({4}, mesh, {Partial()}); }),
        "[ones] the values of a partial tensor are reduced over ranks: P(sum). "
        "Use Replicate in place of Partial.");
    EXPECT_EQ(
        error_of([&] {
          zeros({4, -1}, mesh);
        }),
        "[zeros] a size is negative: [4, -1]. Pass sizes of at least 0.");
    EXPECT_EQ(
        error_of([] { zeros({4}, DeviceMesh()); }),
        "[zeros] no mesh was passed and no mesh is current. Pass a mesh from "
        "init_device_mesh, or set the current one with MeshScope.");
    EXPECT_TRUE(
        at::equal(full_tensor(zeros({4}, mesh, {Partial()})), at::zeros({4})));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
