// SPDX-License-Identifier: BSD-3-Clause
// Inputs and expected results for tests of collectives. An input is a function
// of the rank (small whole numbers from index and rank), so every rank can
// compute the inputs of the others.
#pragma once

#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>
#include <vector>

namespace dtensor::test {

inline std::vector<int64_t> all_ranks(int64_t n) {
  std::vector<int64_t> ranks(static_cast<size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

inline GroupPtr world() {
  return new_group(all_ranks(get_world_size()), "world");
}

// Device of the inputs; the CPU unless a test program changes it.
inline at::Device test_device = at::kCPU;

inline at::Tensor there(const at::Tensor& tensor) {
  return tensor.to(test_device);
}

// Returns small whole numbers, exact in every dtype.
inline at::Tensor input_of(
    int64_t rank,
    at::IntArrayRef sizes,
    at::ScalarType dtype = at::kFloat) {
  int64_t numel = 1;
  for (int64_t size : sizes) {
    numel *= size;
  }
  const at::Tensor values =
      (torch::arange(numel) * 2 + rank).remainder(5).view(sizes);
  return there(values.to(dtype));
}

inline std::vector<at::Tensor> inputs(
    at::IntArrayRef sizes,
    at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> result;
  for (int64_t rank = 0; rank < get_world_size(); ++rank) {
    result.push_back(input_of(rank, sizes, dtype));
  }
  return result;
}

// Computes the reduction with plain operators, in a sufficiently wide dtype.
inline at::Tensor reduced(const std::vector<at::Tensor>& terms, ReduceOp op) {
  const at::ScalarType dtype = terms[0].scalar_type();
  at::ScalarType wide = dtype;
  if (at::isReducedFloatingType(dtype)) {
    wide = at::kDouble;
  }
  if (dtype == at::kBool) {
    wide = at::kLong;
  }
  at::Tensor stack = torch::stack(terms).to(wide);
  at::Tensor result;
  switch (op) {
    case ReduceOp::kSum:
      result = stack.sum(0);
      break;
    case ReduceOp::kAvg:
      result = stack.mean(0);
      break;
    case ReduceOp::kMin:
      result = stack.amin(0);
      break;
    case ReduceOp::kMax:
      result = stack.amax(0);
      break;
    case ReduceOp::kProduct:
      result = stack.prod(0);
      break;
    case ReduceOp::kBand:
      result = stack[0];
      for (size_t i = 1; i < terms.size(); ++i) {
        result = result & stack[static_cast<int64_t>(i)];
      }
      break;
    case ReduceOp::kBor:
      result = stack[0];
      for (size_t i = 1; i < terms.size(); ++i) {
        result = result | stack[static_cast<int64_t>(i)];
      }
      break;
    case ReduceOp::kBxor:
      result = stack[0];
      for (size_t i = 1; i < terms.size(); ++i) {
        result = result ^ stack[static_cast<int64_t>(i)];
      }
      break;
  }
  return result.to(dtype);
}

inline void expect_equal(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.scalar_type(), expected.scalar_type());
  EXPECT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(got.is_contiguous());
  EXPECT_TRUE(torch::equal(got, expected.to(got.device())))
      << "got\n"
      << got << "\nexpected\n"
      << expected;
}

inline constexpr ReduceOp kEveryOp[] = {
    ReduceOp::kSum,
    ReduceOp::kAvg,
    ReduceOp::kMin,
    ReduceOp::kMax,
    ReduceOp::kProduct,
    ReduceOp::kBand,
    ReduceOp::kBor,
    ReduceOp::kBxor};

inline bool has_meaning(ReduceOp op, at::ScalarType dtype) {
  const bool bitwise = op >= ReduceOp::kBand;
  const bool order = op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (at::isIntegralType(dtype, true)) {
    return op != ReduceOp::kAvg;
  }
  return !bitwise && !(order && at::isComplexType(dtype));
}

inline const std::vector<at::ScalarType> kEveryDtype = {
    at::kBool,
    at::kByte,
    at::kChar,
    at::kShort,
    at::kInt,
    at::kLong,
    at::kHalf,
    at::kBFloat16,
    at::kFloat,
    at::kDouble,
    at::kComplexFloat,
    at::kComplexDouble};

} // namespace dtensor::test
