// SPDX-License-Identifier: BSD-3-Clause
// Tests of plain tensors that LibTorch's own functions write to replicated
// DTensors.
#include "tests/ops/against_plain.h"

#include <cmath>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

void on_meshes(const std::function<void(const DeviceMesh&)>& fn) {
  const std::vector<std::vector<int64_t>> shapes{{1}, {3}, {2, 2}};
  for (const auto& shape : shapes) {
    run_ranks(c10::multiply_integers(shape), [&] {
      fn(init_device_mesh(at::kCPU, shape));
    });
  }
}

at::Tensor zeros_on(const DeviceMesh& mesh, at::IntArrayRef sizes) {
  return zeros(
      sizes, mesh, Placements(static_cast<size_t>(mesh.ndim()), Replicate()));
}

TEST(PlainOperand, OrthogonalInitialisationDrawsWhatThePlainOneDraws) {
  on_meshes([](const DeviceMesh& mesh) {
    for (const auto& sizes :
         std::vector<std::vector<int64_t>>{{3, 5}, {5, 3}, {2, 2, 3}}) {
      auto plain = at::zeros(sizes);
      auto weight = zeros_on(mesh, sizes).requires_grad_();
      for (const auto seed : {uint64_t{7}, uint64_t{8}}) { // cold and warm
        torch::manual_seed(seed);
        torch::nn::init::orthogonal_(plain, 1.5);
        torch::manual_seed(seed);
        torch::nn::init::orthogonal_(weight, 1.5);
        EXPECT_TRUE(same(plain, DTensor(weight).full_tensor().detach()));
      }
    }
  });
}

TEST(PlainOperand, SparseInitialisationZeroesTheRowsThatThePlainOneZeroes) {
  on_meshes([](const DeviceMesh& mesh) {
    auto weight = zeros_on(mesh, {7, 4});
    manual_seed(5);
    torch::nn::init::sparse_(weight, 0.3, 0.5);
    manual_seed(5);
    auto expected =
        DTensor(zeros_on(mesh, {7, 4}).normal_(0, 0.5)).full_tensor();
    for (int64_t column = 0; column < 4; ++column) {
      const auto rows = at::randperm(7, at::kLong).slice(0, 0, 3);
      expected.select(1, column).index_fill_(0, rows, 0);
    }
    EXPECT_TRUE(same(expected, DTensor(weight).full_tensor()));
    EXPECT_EQ(expected.eq(0).sum().item<int64_t>(), 3 * 4);
  });
}

TEST(PlainOperand, IsWrittenIfItIsTheSameOnAllRanks) {
  on_meshes([](const DeviceMesh& mesh) {
    auto weight = zeros_on(mesh, {3, 2});
    const auto values = at::arange(6).view({2, 3}).t();
    weight.copy_(values); // another dtype, another memory order
    EXPECT_TRUE(same(values.to(at::kFloat), DTensor(weight).full_tensor()));
    weight.copy_(at::full({2}, NAN));
    EXPECT_EQ(weight.isnan().sum().item<int64_t>(), 6);
  });
}

std::string error_of_copy(const Placement& p, const at::Tensor& source) {
  const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
  auto weight = zeros({4}, mesh, {p});
  return error_of([&] { weight.copy_(source); });
}

TEST(PlainOperand, IsRefusedIfItDiffersBetweenRanks) {
  run_ranks(2, [](int64_t rank) {
    const std::string text =
        "[aten::copy_] argument \"src\", a plain f32[4] next to f32[4] on "
        "(tp=2): R, differs between ranks. Draw it from the same seed on every "
        "rank, or make it a DTensor.";
    EXPECT_EQ(
        error_of_copy(Replicate(), at::full({4}, static_cast<float>(rank))),
        text);
    EXPECT_NE(
        error_of_copy(Replicate(), at::ones({4 + rank}))
            .find("differs between ranks"),
        text.npos);
  });
}

// All ranks throw if a rank has different values. No rank continues, or waits
// for a rank that has thrown.
TEST(PlainOperand, IsRefusedByAllRanksIfOneOfThemDiffers) {
  run_ranks(4, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    auto weight = zeros_on(mesh, {4});
    const auto mine = at::full({4}, rank == 3 ? 2.0 : 1.0);
    EXPECT_NE(
        error_of([&] { weight.copy_(mine); }).find("differs between ranks"),
        std::string::npos);
    EXPECT_EQ(weight.sum().item<double>(), 0);
  });
}

TEST(PlainOperand, IsRefusedBesideAShardAndWithAGradient) {
  run_ranks(2, [] {
    const std::string text = "got mixed plain tensor and DTensor";
    EXPECT_NE(error_of_copy(Shard(0), at::ones({4})).find(text), text.npos);
    EXPECT_NE(
        error_of_copy(Replicate(), at::ones({4}).requires_grad_()).find(text),
        text.npos);
  });
}

std::string format_error(
    const std::string& op,
    const std::string& argument,
    const std::string& format,
    const std::string& layout = "R") {
  return "[aten::" + op + "] got mixed plain tensor and DTensor: argument \"" +
      argument + "\" is a plain " + format +
      " next to f64[5, 5] on (2): " + layout +
      ", and DTensors do not support this format. Convert it to a dense tensor "
      "and distribute it with distribute_tensor, or call the operator on local "
      "tensors (to_local()).";
}

void expect_sparse_is_refused(
    const at::Tensor& x,
    const at::Tensor& sparse,
    const std::string& layout) {
  const auto format = c10::str("tensor of layout ", sparse.layout());
  const auto text = [&](const char* op, const char* argument) {
    return format_error(op, argument, format, layout);
  };
  EXPECT_EQ(error_of([&] { sparse + x; }), text("add.Tensor", "self"));
  EXPECT_EQ(error_of([&] { x + sparse; }), text("add.Tensor", "other"));
  EXPECT_EQ(error_of([&] { sparse* x; }), text("mul.Tensor", "self"));
  EXPECT_EQ(error_of([&] { x* sparse; }), text("mul.Tensor", "other"));
  EXPECT_EQ(error_of([&] { x.clone().copy_(sparse); }), text("copy_", "src"));
  EXPECT_EQ(error_of([&] { at::matmul(sparse, x); }), text("matmul", "self"));
  EXPECT_EQ(error_of([&] { at::addmm(x, sparse, x); }), text("addmm", "mat1"));
  const std::string product = error_of([&] { at::_sparse_mm(sparse, x); });
  EXPECT_NE(product.find("is a plain " + format), product.npos) << product;
}

// LibTorch has kernels of addition for all formats, which a fallback would not
// precede.
TEST(PlainOperand, IsRefusedIfItIsSparse) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto eye = at::eye(5, at::kDouble);
    for (const auto& p : Placements{Replicate(), Shard(0)}) {
      const auto x = place(numbers({5, 5}, 1), mesh, {p});
      for (const auto& sparse : {eye.to_sparse(), eye.to_sparse_csr()}) {
        expect_sparse_is_refused(x, sparse, to_string(p));
        expect_sparse_is_refused(leaf(x), sparse, to_string(p));
        const torch::NoGradGuard no_grad;
        expect_sparse_is_refused(x, sparse, to_string(p));
        const auto scope = implicit_replication();
        expect_sparse_is_refused(x, sparse, to_string(p));
      }
    }
  });
}

TEST(PlainOperand, IsRefusedIfItIsNestedOrQuantized) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(numbers({5, 5}, 1), mesh, {Replicate()});
    const auto nested =
        at::_nested_tensor_from_tensor_list({at::ones({5, 5}, at::kDouble)});
    EXPECT_EQ(
        error_of([&] { nested + x; }),
        format_error("add.Tensor", "self", "nested tensor"));
    const auto quantized =
        at::quantize_per_tensor(at::ones({5, 5}), 0.1, 0, at::kQUInt8);
    EXPECT_EQ(
        error_of([&] { at::matmul(x, quantized); }),
        format_error("matmul", "other", "quantized tensor"));
  });
}

TEST(PlainOperand, ATensorWithoutElementsIsEqualOnAllRanks) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(numbers({4, 3}, 1), mesh, {Shard(0)});
    const auto rows = at::cat({x, at::empty({0, 3}, x.dtype())});
    EXPECT_TRUE(same(numbers({4, 3}, 1), DTensor(rows).full_tensor()));
    EXPECT_EQ(x.index_select(0, at::empty({0}, at::kLong)).size(0), 0);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
