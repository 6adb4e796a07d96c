// SPDX-License-Identifier: BSD-3-Clause
// all_reduce and reduce_scatter.
#include <tests/comm/contract/contract.h>

#include <limits>
#include <utility>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

// Empty and 0-d tensors, tensors below and above the size of small messages,
// and of several blocks with a remainder.
CONTRACT_CASE(ReductionsOfEveryShape, Needs::kPeers) {
  for (const Sizes& shape :
       {Sizes{},
        Sizes{0},
        Sizes{3, 0},
        Sizes{0, 70001},
        Sizes{1, 1, 1, 1, 2, 1, 1, 1, 3},
        Sizes{7, 3},
        Sizes{4, 7, 3},
        Sizes{260, 129},
        Sizes{1, 70001}}) {
    for (const auto& [dtype, op] :
         {std::pair{at::kFloat, ReduceOp::kSum},
          std::pair{at::kBFloat16, ReduceOp::kSum},
          std::pair{at::kLong, ReduceOp::kMax}}) {
      SCOPED_TRACE(c10::str(dtype, shape, " ", to_string(op)));
      const auto terms = inputs(group, shape, dtype);
      const at::Tensor whole = reduced(terms, op);
      expect_all_reduce(group, mine(group, terms), op, whole);
      for (int64_t dim = 0; dim < whole.dim(); ++dim) {
        expect_reduce_scatter(group, mine(group, terms), dim, op, whole);
      }
    }
  }
}

void reduce_every_dtype(
    Group& group,
    const std::vector<Sizes>& reduced_shapes,
    const Sizes& scattered_shape) {
  for_every_reduction([&](at::ScalarType dtype, ReduceOp op) {
    for (const Sizes& shape : reduced_shapes) {
      const auto terms = inputs(group, shape, dtype);
      expect_equal(
          group.all_reduce(mine(group, terms), op), reduced(terms, op));
      expect_equal(mine(group, terms), input_of(group.rank(), shape, dtype));
    }
    const auto terms = inputs(group, scattered_shape, dtype);
    for (const int64_t dim : {0, -1}) {
      const auto shards = chunks(reduced(terms, op), group.size(), dim);
      expect_equal(
          group.reduce_scatter(mine(group, terms), dim, op),
          mine(group, shards).contiguous());
    }
    expect_equal(
        mine(group, terms), input_of(group.rank(), scattered_shape, dtype));
  });
}

CONTRACT_CASE(ReductionsOfEveryDtype, Needs::kPeers) {
  reduce_every_dtype(group, {{}, {3, 2}, {0, 3}}, {5, 2});
}

CONTRACT_CASE(LongReductionsOfEveryDtype, Needs::kPeers) {
  const int64_t blocks = group.size() > 4 ? 5000 : 20000;
  reduce_every_dtype(group, {{2000}, {blocks}}, {6, 700});
}

// Numbers of elements around the boundaries of small messages and of blocks.
CONTRACT_CASE(AllReduceOfEverySize, Needs::kPeers) {
  for (const int64_t numel :
       {1,
        7,
        31,
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
        5000,
        16384,
        70001}) {
    const auto terms = inputs(group, {numel});
    expect_equal(
        group.all_reduce(mine(group, terms), ReduceOp::kSum),
        reduced(terms, ReduceOp::kSum));
  }
}

CONTRACT_CASE(ReduceScatterGivesTheSizesAskedFor, Needs::kPeers) {
  const auto n = static_cast<size_t>(group.size());
  for (const int64_t columns :
       {group.size() * (group.size() + 1) / 2, 700L, 7000L}) {
    Sizes first_and_last(n); // the ranks between get nothing
    first_and_last.back() = columns;
    first_and_last.front() = 1;
    first_and_last.back() -= 1;
    Sizes last(n);
    last.back() = columns;
    Sizes falling; // n, n - 1, ..., and the rest
    int64_t rest = columns;
    for (size_t rank = 0; rank < n; ++rank) {
      falling.push_back(rank + 1 == n ? rest : static_cast<int64_t>(n - rank));
      rest -= falling.back();
    }
    for (const Sizes& sizes : {first_and_last, last, falling}) {
      for (const int64_t dim : {0, -1}) {
        const Sizes shape = dim == 0 ? Sizes{columns, 2} : Sizes{2, columns};
        const auto terms = inputs(group, shape);
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
          expect_reduce_scatter(
              group, mine(group, terms), dim, op, reduced(terms, op), sizes);
        }
      }
    }
  }
}

// Sums that depend on the order of rounding.
CONTRACT_CASE(ReductionsHaveTheSameBitsOnAllRanks, Needs::kPeers) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t numel : {3, 100, 2000, 50'000, 300'000}) {
      const at::Tensor x = rounding(group.rank(), {numel}, dtype);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        const at::Tensor result = group.all_reduce(x, op);
        for (const at::Tensor& other : group.gather(result, 0)) {
          EXPECT_TRUE(torch::equal(other, result));
        }
      }
    }
  }
}

// NaN of one rank, in small and in large tensors.
CONTRACT_CASE(MinAndMaxKeepNaN, Needs::kPeers) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t size : {40, 6000}) {
      for (const int64_t who : {int64_t{0}, group.size() - 1}) {
        const at::Tensor x =
            full({size}, static_cast<double>(group.rank()), dtype);
        if (group.rank() == who) {
          x.slice(0, 0, size, 3).fill_(nan);
        }
        for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
          const at::Tensor expected = full(
              {size},
              op == ReduceOp::kMin ? 0.0
                                   : static_cast<double>(group.size() - 1),
              dtype);
          expected.slice(0, 0, size, 3).fill_(nan);
          for (const at::Tensor& got :
               {group.all_reduce(x, op),
                group.all_reduce_async(x, op)->wait()}) {
            EXPECT_TRUE(torch::allclose(got, expected, 0, 0, true));
          }
        }
      }
    }
  }
}

CONTRACT_CASE(AveragesOfHalvesDoNotOverflow, Needs::kPeers) {
  for (const int64_t size : {2, 6000}) {
    const at::Tensor big = full({size}, 60000.0, at::kHalf);
    expect_all_reduce(group, big, ReduceOp::kAvg, big);
    expect_reduce_scatter(group, big, 0, ReduceOp::kAvg, big);
  }
}

CONTRACT_CASE(IntegersWrapAround, Needs::kPeers) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const at::Tensor x = there(torch::full({3}, most, at::kLong));
  const auto sum = static_cast<uint64_t>(group.size()) * uint64_t(most);
  EXPECT_EQ(
      group.all_reduce(x, ReduceOp::kSum)[1].item<int64_t>(),
      static_cast<int64_t>(sum));
}

} // namespace TEST_SOURCE
} // namespace dtensor
