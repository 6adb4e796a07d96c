// SPDX-License-Identifier: BSD-3-Clause
// Invalid arguments, which are rejected before any communication.
#include <tests/comm/contract/contract.h>
#include <tests/comm/expect_error.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

std::string in_group(const Group& group) {
  return c10::str(
      "\"",
      group.label(),
      "\", which has ",
      group.size(),
      group.size() == 1 ? " rank" : " ranks");
}

CONTRACT_CASE(ErrorsNameTheDtypeAndTheOp, Needs::kNothing) {
  const auto error = [&](at::ScalarType dtype, ReduceOp op) {
    return error_of<c10::TypeError>(
        [&] { group.all_reduce(full({2}, 1, dtype), op); });
  };
  EXPECT_EQ(
      error(at::kFloat, ReduceOp::kBand),
      "[all_reduce] band needs an integer or boolean dtype: f32. Use sum, avg, "
      "min, max or product.");
  EXPECT_EQ(
      error(at::kComplexFloat, ReduceOp::kMax),
      "[all_reduce] max needs an ordered dtype: c64. Complex dtypes support "
      "sum, avg and product.");
  EXPECT_EQ(
      error_of<c10::TypeError>([&] {
        group.reduce_scatter(full({2}, 1, at::kLong), 0, ReduceOp::kAvg);
      }),
      "[reduce_scatter] avg needs a floating-point or complex dtype: i64. Use "
      "sum and divide.");
}

CONTRACT_CASE(ErrorsNameTheDimension, Needs::kNothing) {
  EXPECT_EQ(
      error_of<c10::IndexError>([&] { group.all_gather(full({2}, 1), 1); }),
      "[all_gather] no dimension 1 in a tensor of 1 dimension. Use one from -1 "
      "to 0.");
  const at::Tensor x = full({2, 2}, 1);
  EXPECT_EQ(
      error_of<c10::IndexError>([&] { group.shard_dim_alltoall(x, 0, 2); }),
      "[shard_dim_alltoall] no dimension 2 in a tensor of 2 dimensions. Use "
      "one from -2 to 1.");
  EXPECT_EQ(
      error_of<c10::ValueError>([&] { group.shard_dim_alltoall(x, 1, -1); }),
      "[shard_dim_alltoall] gather_dim and shard_dim are both 1. Pass two "
      "different dimensions.");
}

CONTRACT_CASE(ErrorsNameTheRootAndThePeer, Needs::kNothing) {
  const at::Tensor x = full({2}, 1);
  EXPECT_EQ(
      error_of<c10::IndexError>([&] { group.broadcast(x, group.size()); }),
      c10::str(
          "[broadcast] no rank ",
          group.size(),
          " in ",
          in_group(group),
          ". Pass a position in the group, not a global rank."));
  EXPECT_EQ(
      error_of<c10::ValueError>([&] { group.send(x, group.rank()); }),
      c10::str(
          "[send] rank ",
          group.rank(),
          " of \"",
          group.label(),
          "\" is the caller itself. Pass another rank."));
}

CONTRACT_CASE(ErrorsDescribeTheInputs, Needs::kNothing) {
  EXPECT_EQ(
      error_of<c10::ValueError>([&] { group.all_to_all({full({2}, 1)}); }),
      c10::str(
          "[all_to_all] needs one tensor for each rank of \"",
          group.label(),
          "\", which has ",
          group.size(),
          " ranks: got 1. Pass empty tensors where nothing is sent."));
  std::vector<at::Tensor> sent(static_cast<size_t>(group.size()), full({2}, 1));
  sent.back() = full({2}, 1, at::kLong);
  EXPECT_EQ(
      error_of<c10::TypeError>([&] { group.all_to_all(sent); }),
      "[all_to_all] the tensors differ in dtype: f32 and i64. Convert them to "
      "one dtype.");
  sent.back() = torch::empty({2}, at::kMeta);
  EXPECT_EQ(
      error_of<c10::ValueError>([&] { group.all_to_all(sent); }),
      c10::str(
          "[all_to_all] the tensors are on different devices: ",
          sent.front().device(),
          " and meta. Move them to one."));
}

CONTRACT_CASE(ErrorsDescribeOut, Needs::kNothing) {
  const at::Tensor x = full({3, 2}, 1);
  const at::Tensor out = full({2, 3}, 1).t();
  EXPECT_EQ(
      error_of<c10::ValueError>(
          [&] { group.all_reduce_async(x, ReduceOp::kSum, out); }),
      "[all_reduce_async] `out`, f32[3, 2] (not contiguous), cannot take the "
      "result, f32[3, 2]. Pass a contiguous tensor of that shape and dtype.");
}

CONTRACT_CASE(ErrorsDescribeTheCounts, Needs::kNothing) {
  EXPECT_EQ(
      error_of<c10::ValueError>([&] {
        group.all_to_all_async(full({3}, 1), {1, 1}, {1, 1});
      }),
      c10::str(
          "[all_to_all_async] the counts do not fit f32[3] on ",
          in_group(group),
          ": sent [1, 1], received [1, 1]. Pass one count per rank, adding up "
          "to the number of elements, and the same count for this rank itself "
          "in both."));
  const Sizes threes(static_cast<size_t>(group.size()), 3);
  const at::Tensor transposed = full({3, group.size()}, 1).t();
  EXPECT_EQ(
      error_of<c10::ValueError>(
          [&] { group.all_to_all_async(transposed, threes, threes); }),
      c10::str(
          "[all_to_all_async] `input`, f32[",
          group.size(),
          ", 3], is not contiguous. Pass a contiguous tensor."));
}

CONTRACT_CASE(ErrorsNameInvalidSizes, Needs::kNothing) {
  const at::Tensor x = full({3}, 1);
  Sizes sizes(static_cast<size_t>(group.size()), 0);
  const auto expect_error = [&](std::string_view before,
                                std::string_view after) {
    const auto expect = [&](const char* where, const auto& fn) {
      EXPECT_EQ(
          error_of<c10::ValueError>(fn),
          c10::str(
              "[",
              where,
              "] ",
              before,
              " on \"",
              group.label(),
              "\": ",
              SizesRef(sizes),
              after));
    };
    expect(
        "all_to_all_async", [&] { group.all_to_all_async(x, sizes, sizes); });
    expect("reduce_scatter", [&] {
      group.reduce_scatter(x, 0, ReduceOp::kSum, sizes);
    });
    expect("all_gather", [&] { group.all_gather(x, 0, sizes); });
  };
  sizes.front() = 4;
  sizes.back() = -1;
  expect_error("negative sizes", ". Pass 0 for a rank without elements.");
  // Their sum overflows to the size of x.
  sizes.assign(sizes.size(), std::numeric_limits<int64_t>::max());
  expect_error("sizes above 2^48", ". Pass each rank's number of elements.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
