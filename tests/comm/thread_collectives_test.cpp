// SPDX-License-Identifier: BSD-3-Clause
// Properties of ranks that are threads: reductions add in rank order, and round
// sums of 16-bit floats only once; messages are buffered. contract_test.cpp
// tests the properties of all backends.
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <tests/comm/contract/contract.h>
#include <torch/torch.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

at::Tensor combined(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return torch::minimum(a, b);
    case ReduceOp::kMax:
      return torch::maximum(a, b);
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kBand:
      return a & b;
    case ReduceOp::kBor:
      return a | b;
    case ReduceOp::kBxor:
      return a ^ b;
    default:
      return a + b;
  }
}

// Reduces from left to right; sums, averages and products of 16-bit floats in
// f32.
at::Tensor in_rank_order(const std::vector<at::Tensor>& terms, ReduceOp op) {
  const at::ScalarType dtype = terms[0].scalar_type();
  const bool wide = at::isReducedFloatingType(dtype);
  at::Tensor result = wide ? terms[0].to(at::kFloat) : terms[0].clone();
  for (size_t i = 1; i < terms.size(); ++i) {
    result = combined(result, wide ? terms[i].to(at::kFloat) : terms[i], op);
  }
  if (op == ReduceOp::kAvg) {
    result = result / static_cast<double>(terms.size());
  }
  return result.to(dtype);
}

class ThreadCollectives : public testing::TestWithParam<int64_t> {
 protected:
  template <typename Fn>
  void on_ranks(const Fn& fn) {
    run_ranks(GetParam(), [&fn] { fn(*world()); });
  }
};

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    ThreadCollectives,
    testing::Values(2, 3, 4, 8, 16));

std::vector<at::Tensor>
rounding_inputs(const Group& group, const Sizes& sizes, at::ScalarType dtype) {
  std::vector<at::Tensor> terms;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    terms.push_back(rounding(rank, sizes, dtype));
  }
  return terms;
}

// The results, also those of asynchronous reductions, equal the results of
// plain operators, bit for bit.
void reduce_in_rank_order(
    Group& group,
    const Sizes& sizes,
    at::ScalarType dtype,
    ReduceOp op) {
  const auto terms = rounding_inputs(group, sizes, dtype);
  const at::Tensor expected = in_rank_order(terms, op);
  expect_all_reduce(group, mine(group, terms), op, expected);
  for (int64_t dim = 0; dim < expected.dim(); ++dim) {
    expect_reduce_scatter(group, mine(group, terms), dim, op, expected);
  }
}

TEST_P(ThreadCollectives, ReduceInRankOrder) {
  on_ranks([](Group& group) {
    for_every_reduction([&](at::ScalarType dtype, ReduceOp op) {
      if (dtype == at::kComplexDouble ||
          (op == ReduceOp::kAvg && at::isComplexType(dtype))) {
        return;
      }
      for (const Sizes& sizes :
           {Sizes{}, Sizes{1}, Sizes{37}, Sizes{5, 7}, Sizes{0}, Sizes{3, 0}}) {
        reduce_in_rank_order(group, sizes, dtype, op);
      }
    });
  });
}

// Lengths from one element to twice the size of small messages, around every
// boundary of the loops, and several blocks. The results do not depend on the
// code path.
TEST_P(ThreadCollectives, ReduceEveryLengthInRankOrder) {
  on_ranks([](Group& group) {
    for (const int64_t size :
         {31,
          32,
          33,
          511,
          512,
          513,
          1023,
          1024,
          1025,
          2047,
          2048,
          2049,
          4096,
          4097,
          40001,
          5 * 6 * 1117}) {
      for (const at::ScalarType dtype :
           {at::kFloat, at::kLong, at::kBFloat16}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
          reduce_in_rank_order(group, {size}, dtype, op);
        }
      }
    }
  });
}

// 2^18 + 5 elements: blocks and partial blocks, in every kind of loop.
TEST_P(ThreadCollectives, LargeAndSmallOnesAgree) {
  on_ranks([](Group& group) {
    for (const at::ScalarType dtype :
         {at::kFloat, at::kDouble, at::kInt, at::kBFloat16}) {
      const auto terms = rounding_inputs(group, {(1 << 18) + 5}, dtype);
      const at::Tensor& x = mine(group, terms);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin}) {
        const at::Tensor whole = group.all_reduce(x, op);
        expect_equal(whole, in_rank_order(terms, op));
        const at::Tensor end = x.slice(0, 1 << 18).clone();
        expect_equal(
            group.all_reduce(end, op), whole.slice(0, 1 << 18).clone());
      }
    }
  });
}

TEST_P(ThreadCollectives, LastForManyRounds) {
  on_ranks([](Group& group) { many_rounds(group, 4000); });
}

// send() returns before the receiver calls recv(). The message is a copy.
TEST_P(ThreadCollectives, MessagesAreBuffered) {
  on_ranks([](Group& group) {
    const int64_t n = group.size();
    const int64_t previous = (group.rank() + n - 1) % n;
    for (int64_t i = 0; i < 20; ++i) {
      at::Tensor x = input_of(group.rank() + i, {4});
      group.send(x, (group.rank() + 1) % n);
      x.fill_(-1);
      expect_equal(
          group.recv(torch::empty({4}), previous), input_of(previous + i, {4}));
    }
  });
}

TEST(ThreadMessages, KeepTheirOrderPerTag) {
  run_ranks(2, [](int64_t rank) {
    const GroupPtr group = world();
    if (rank == 0) {
      for (int64_t i = 0; i < 3; ++i) {
        group->send(torch::tensor({i}), 1, 7);
        group->send(torch::tensor({10 + i}), 1, 8);
      }
    } else {
      for (int64_t tag : {8, 7}) {
        for (int64_t i = 0; i < 3; ++i) {
          const at::Tensor got =
              group->recv(torch::empty({1}, at::kLong), 0, tag);
          EXPECT_EQ(got.item<int64_t>(), i + (tag == 8 ? 10 : 0));
        }
      }
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
