// SPDX-License-Identifier: BSD-3-Clause
// Every collective, compared with closed forms and with plain operators on the
// inputs of all ranks.
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "collective_inputs.h"
#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

class Ranks : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(
    Collectives,
    Ranks,
    testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 16));

TEST_P(Ranks, AllReduceOfEveryDtypeWithEveryOp) {
  run_ranks(GetParam(), [](int64_t rank) {
    const GroupPtr group = world();
    for (at::ScalarType dtype : kEveryDtype) {
      for (ReduceOp op : kEveryOp) {
        if (!has_meaning(op, dtype)) {
          continue;
        }
        SCOPED_TRACE(c10::str(dtype, " ", to_string(op)));
        const at::Tensor mine = input_of(rank, {3, 2}, dtype);
        const at::Tensor before = mine.clone();
        expect_equal(
            group->all_reduce(mine, op), reduced(inputs({3, 2}, dtype), op));
        expect_equal(mine, before);
      }
    }
  });
}

TEST_P(Ranks, ReduceScatterOfEveryDtypeWithEveryOp) {
  run_ranks(GetParam(), [](int64_t rank) {
    const GroupPtr group = world();
    for (at::ScalarType dtype : kEveryDtype) {
      for (ReduceOp op : kEveryOp) {
        if (!has_meaning(op, dtype)) {
          continue;
        }
        SCOPED_TRACE(c10::str(dtype, " ", to_string(op)));
        const auto chunks =
            reduced(inputs({5, 2}, dtype), op).chunk(get_world_size(), 0);
        const at::Tensor expected = rank < static_cast<int64_t>(chunks.size())
            ? chunks[static_cast<size_t>(rank)]
            : torch::empty({0, 2}, dtype);
        expect_equal(
            group->reduce_scatter(input_of(rank, {5, 2}, dtype), 0, op),
            expected);
      }
    }
  });
}

TEST_P(Ranks, AllGatherOfEveryDtype) {
  run_ranks(GetParam(), [](int64_t rank) {
    for (at::ScalarType dtype : kEveryDtype) {
      expect_equal(
          world()->all_gather(input_of(rank, {2, 3}, dtype), 1),
          torch::cat(inputs({2, 3}, dtype), 1));
    }
  });
}

TEST_P(Ranks, AllGatherOfUnevenAndEmptySizes) {
  run_ranks(GetParam(), [](int64_t rank) {
    const auto part = [](int64_t r) { return input_of(r, {3, r % 3, 2}); };
    std::vector<at::Tensor> parts;
    for (int64_t r = 0; r < get_world_size(); ++r) {
      parts.push_back(part(r));
    }
    expect_equal(world()->all_gather(part(rank), 1), torch::cat(parts, 1));
    expect_equal(world()->all_gather(part(rank), -2), torch::cat(parts, 1));
  });
}

TEST_P(Ranks, ReduceScatterGivesTorchChunkAlongEveryDim) {
  run_ranks(GetParam(), [](int64_t rank) {
    const at::Tensor sum = reduced(inputs({4, 7, 3}), ReduceOp::kSum);
    for (int64_t dim = -3; dim < 3; ++dim) {
      const auto chunks = sum.chunk(get_world_size(), dim);
      std::vector<int64_t> none = {4, 7, 3};
      none[static_cast<size_t>(dim < 0 ? dim + 3 : dim)] = 0;
      expect_equal(
          world()->reduce_scatter(
              input_of(rank, {4, 7, 3}), dim, ReduceOp::kSum),
          rank < static_cast<int64_t>(chunks.size())
              ? chunks[static_cast<size_t>(rank)].contiguous()
              : torch::empty(none));
    }
  });
}

TEST_P(Ranks, TakeSizesThatTheyDoNotNeed) {
  run_ranks(GetParam(), [](int64_t rank) {
    const int64_t n = get_world_size();
    const GroupPtr group = world();
    EXPECT_FALSE(group->exchanges_sizes());
    Sizes sizes;
    std::vector<at::Tensor> parts;
    for (int64_t r = 0; r < n; ++r) {
      sizes.push_back(r % 3);
      parts.push_back(input_of(r, {3, r % 3, 2}));
    }
    const at::Tensor mine = parts[static_cast<size_t>(rank)];
    expect_equal(group->all_gather(mine, 1, sizes), torch::cat(parts, 1));
    expect_equal(
        group->all_gather_async(mine, 1, sizes)->wait(), torch::cat(parts, 1));
    const Sizes ones(static_cast<size_t>(n), 1);
    expect_equal(
        group->all_gather(input_of(rank, {1, 2}), 0, ones),
        torch::cat(inputs({1, 2}), 0));
  });
}

TEST_P(Ranks, ReduceScatterGivesTheSizesAskedFor) {
  run_ranks(GetParam(), [](int64_t rank) {
    const int64_t n = get_world_size();
    Sizes sizes; // n, n - 1, ..., 1
    int64_t begin = 0;
    for (int64_t r = 0; r < n; ++r) {
      sizes.push_back(n - r);
      begin += r < rank ? n - r : 0;
    }
    const int64_t total = n * (n + 1) / 2;
    const auto sum = reduced(inputs({2, total}), ReduceOp::kSum);
    expect_equal(
        world()->reduce_scatter(
            input_of(rank, {2, total}), 1, ReduceOp::kSum, sizes),
        sum.narrow(1, begin, n - rank).contiguous());
  });
}

// Returns the message from rank `from` to rank `to`, with a shape that differs
// between pairs.
at::Tensor message(int64_t from, int64_t to, at::ScalarType dtype) {
  return input_of(from * 16 + to, {(from + 2 * to) % 4, 2}, dtype);
}

TEST_P(Ranks, AllToAllOfEveryDtype) {
  run_ranks(GetParam(), [](int64_t rank) {
    for (at::ScalarType dtype : kEveryDtype) {
      std::vector<at::Tensor> sent;
      for (int64_t to = 0; to < get_world_size(); ++to) {
        sent.push_back(message(rank, to, dtype));
      }
      const auto received = world()->all_to_all(sent);
      ASSERT_EQ(static_cast<int64_t>(received.size()), get_world_size());
      for (int64_t from = 0; from < get_world_size(); ++from) {
        expect_equal(
            received[static_cast<size_t>(from)], message(from, rank, dtype));
      }
    }
  });
}

TEST_P(Ranks, BroadcastScatterAndGatherWithEveryRoot) {
  run_ranks(GetParam(), [](int64_t rank) {
    const GroupPtr group = world();
    for (int64_t root = 0; root < get_world_size(); ++root) {
      expect_equal(
          group->broadcast(input_of(rank, {2, 3}), root),
          input_of(root, {2, 3}));
      std::vector<at::Tensor> parts;
      for (int64_t to = 0; rank == root && to < get_world_size(); ++to) {
        parts.push_back(message(root, to, at::kFloat));
      }
      expect_equal(
          group->scatter(
              parts, torch::empty_like(message(root, rank, at::kFloat)), root),
          message(root, rank, at::kFloat));
      const auto gathered = group->gather(message(rank, 0, at::kLong), root);
      ASSERT_EQ(
          static_cast<int64_t>(gathered.size()),
          rank == root ? get_world_size() : 0);
      for (size_t from = 0; from < gathered.size(); ++from) {
        expect_equal(
            gathered[from], message(static_cast<int64_t>(from), 0, at::kLong));
      }
    }
  });
}

TEST_P(Ranks, LargeAllReduceIsBitwiseTheSameOnAllRanks) {
  run_ranks(GetParam(), [](int64_t rank) {
    const GroupPtr group = world();
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      std::vector<at::Tensor> terms;
      for (int64_t r = 0; r < get_world_size(); ++r) {
        terms.push_back(torch::sin(torch::arange(40001) * (r + 1)).to(dtype));
      }
      // The sum is in rank order; bfloat16 accumulates in float32 and rounds
      // once.
      at::Tensor expected = terms[0].to(at::kFloat);
      for (size_t r = 1; r < terms.size(); ++r) {
        expected = expected + terms[r].to(at::kFloat);
      }
      const at::Tensor sum =
          group->all_reduce(terms[static_cast<size_t>(rank)], ReduceOp::kSum);
      expect_equal(sum, expected.to(dtype));
      for (const at::Tensor& other : group->gather(sum, 0)) {
        EXPECT_TRUE(torch::equal(other, sum));
      }
    }
  });
}

TEST_P(Ranks, HundredsOfCollectivesInARow) {
  run_ranks(GetParam(), [](int64_t rank) {
    const GroupPtr group = world();
    const int64_t n = get_world_size();
    at::Tensor value = torch::full({3}, static_cast<double>(rank), at::kDouble);
    for (int64_t i = 0; i < 300; ++i) {
      const at::Tensor sum = group->all_reduce(value, ReduceOp::kSum);
      EXPECT_EQ(
          sum[0].item<double>(), static_cast<double>(n * (n - 1) / 2 + n * i));
      value.add_(1); // no rank may still read it
    }
  });
}

TEST_P(Ranks, SendAndRecvAroundTheRing) {
  if (GetParam() == 1) {
    GTEST_SKIP() << "a rank does not send to itself";
  }
  run_ranks(GetParam(), [](int64_t rank) {
    const GroupPtr group = world();
    const int64_t n = get_world_size();
    const int64_t next = (rank + 1) % n;
    const int64_t previous = (rank + n - 1) % n;
    for (int64_t i = 0; i < 20; ++i) {
      at::Tensor mine = input_of(rank + i, {4});
      group->send(mine, next);
      mine.fill_(-1); // a sent message is a copy
      expect_equal(
          group->recv(torch::empty({4}), previous),
          input_of(previous + i, {4}));
    }
  });
}

TEST(Collectives, MessagesKeepTheirOrderPerTag) {
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

TEST(Collectives, TakeNonContiguousInputs) {
  run_ranks(3, [](int64_t rank) {
    const GroupPtr group = world();
    const auto odd = [](int64_t r) {
      return input_of(r, {4, 6}).t().slice(0, 0, 6, 2);
    };
    std::vector<at::Tensor> terms = {odd(0), odd(1), odd(2)};
    expect_equal(
        group->all_reduce(odd(rank), ReduceOp::kSum),
        reduced(terms, ReduceOp::kSum).contiguous());
    expect_equal(group->all_gather(odd(rank), 0), torch::cat(terms, 0));
    expect_equal(
        group->reduce_scatter(odd(rank), 1, ReduceOp::kMax),
        reduced(terms, ReduceOp::kMax)
            .chunk(3, 1)
            .at(std::min<size_t>(static_cast<size_t>(rank), 1))
            .slice(1, 0, rank < 2 ? 2 : 0)
            .contiguous());
    expect_equal(group->broadcast(odd(rank), 1), odd(1).contiguous());
    expect_equal(
        group->all_to_all({odd(rank), odd(rank), odd(rank)})[2],
        odd(2).contiguous());
    const at::Tensor one = torch::full({}, 2.0).expand({5});
    expect_equal(
        group->all_reduce(one, ReduceOp::kProduct), torch::full({5}, 8.0));
  });
}

TEST(Collectives, TakeScalarsAndEmptyTensors) {
  run_ranks(3, [](int64_t rank) {
    const GroupPtr group = world();
    expect_equal(
        group->all_reduce(
            torch::tensor(static_cast<double>(rank)), ReduceOp::kAvg),
        torch::tensor(1.0));
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kAvg}) {
      expect_equal(
          group->all_reduce(torch::empty({0, 3}), op), torch::empty({0, 3}));
      expect_equal(
          group->reduce_scatter(torch::empty({4, 0}), 0, op),
          torch::empty({rank < 2 ? 2 : 0, 0}));
    }
    expect_equal(group->all_gather(torch::empty({0}), 0), torch::empty({0}));
    expect_equal(group->broadcast(torch::empty({0}), 1), torch::empty({0}));
  });
}

TEST(Collectives, KeepNanInMinAndMax) {
  run_ranks(2, [](int64_t rank) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor mine = torch::tensor({rank == 1 ? nan : 1.0F, 2.0F});
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      const at::Tensor result = world()->all_reduce(mine, op);
      EXPECT_TRUE(std::isnan(result[0].item<float>()));
      EXPECT_EQ(result[1].item<float>(), 2.0F);
    }
  });
}

TEST(Collectives, AverageOfHalvesDoesNotOverflow) {
  run_ranks(2, [](int64_t) {
    const at::Tensor big = torch::full({2}, 60000.0, at::kHalf);
    expect_equal(world()->all_reduce(big, ReduceOp::kAvg), big);
  });
}

TEST(Collectives, GiveResultsWithoutHistory) {
  run_ranks(2, [](int64_t rank) {
    const GroupPtr group = world();
    const at::Tensor x = input_of(rank, {4}).requires_grad_();
    EXPECT_FALSE(group->all_reduce(x, ReduceOp::kSum).requires_grad());
    EXPECT_FALSE(group->all_gather(x * 2, 0).requires_grad());
    EXPECT_FALSE(
        group->reduce_scatter(x * 2, 0, ReduceOp::kAvg).requires_grad());
    EXPECT_FALSE(group->broadcast(x, 0).requires_grad());
  });
}

TEST(Collectives, WorkInInferenceMode) {
  run_ranks(2, [](int64_t rank) {
    const c10::InferenceMode inference;
    const at::Tensor x = input_of(rank, {4});
    expect_equal(
        world()->all_reduce(x, ReduceOp::kSum),
        reduced(inputs({4}), ReduceOp::kSum));
    expect_equal(world()->all_gather(x, 0), torch::cat(inputs({4}), 0));
  });
}

TEST(Collectives, RunAtTheSameTimeOnTheGroupsOfAMesh) {
  // The rows are {0, 1, 2} and {3, 4, 5}; the columns are {0, 3}, {1, 4} and
  // {2, 5}.
  run_ranks(6, [](int64_t rank) {
    const int64_t row = rank / 3;
    const int64_t column = rank % 3;
    const GroupPtr tp = new_group({row * 3, row * 3 + 1, row * 3 + 2}, "tp");
    const GroupPtr dp = new_group({column, column + 3}, "dp");
    EXPECT_EQ(tp->rank(), column);
    EXPECT_EQ(dp->rank(), row);
    const at::Tensor mine = torch::tensor({rank});
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(
          tp->all_reduce(mine, ReduceOp::kSum).item<int64_t>(), row * 9 + 3);
      EXPECT_EQ(
          dp->all_reduce(mine, ReduceOp::kSum).item<int64_t>(), column * 2 + 3);
    }
  });
}

TEST(Collectives, FollowTheOrderOfTheGroup) {
  run_ranks(4, [](int64_t rank) {
    if (rank == 1) {
      return; // not a member, so free to end
    }
    const GroupPtr group = new_group({3, 0, 2}, "odd");
    expect_equal(
        group->all_gather(torch::tensor({rank}), 0), torch::tensor({3, 0, 2}));
    EXPECT_EQ(group->broadcast(torch::tensor({rank}), 0).item<int64_t>(), 3);
  });
}

TEST(Collectives, ExchangeStrings) {
  run_ranks(3, [](int64_t rank) {
    EXPECT_EQ(
        world()->all_gather_strings("r" + std::to_string(rank)),
        (std::vector<std::string>{"r0", "r1", "r2"}));
  });
}

TEST(Collectives, OfOneRankReturnTheInputItself) {
  const GroupPtr group = new_group({0}, "tp");
  const at::Tensor x = torch::ones({2});
  EXPECT_TRUE(group->all_reduce(x, ReduceOp::kSum).is_same(x));
  EXPECT_TRUE(group->all_gather(x, 0).is_same(x));
  EXPECT_TRUE(group->reduce_scatter(x, 0, ReduceOp::kSum).is_same(x));
  EXPECT_TRUE(group->all_to_all({x})[0].is_same(x));
  EXPECT_TRUE(group->broadcast(x, 0).is_same(x));
  EXPECT_TRUE(group->scatter({x}, x, 0).is_same(x));
  EXPECT_TRUE(group->gather(x, 0)[0].is_same(x));
  EXPECT_EQ(group->all_gather_strings("a"), std::vector<std::string>{"a"});
  group->barrier();
}

TEST(Collectives, BarrierWaitsForEveryRank) {
  std::atomic<int> before{0};
  run_ranks(4, [&](int64_t rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * rank));
    ++before;
    world()->barrier();
    EXPECT_EQ(before.load(), 4);
  });
}

// Returns the error of invalid arguments, which are rejected before any
// communication.
template <typename Error, typename Fn>
std::string two_ranks(const Fn& fn) {
  return test::error_of<Error>([&] { run_ranks(2, [&] { fn(*world()); }); });
}

TEST(CollectiveErrors, NameTheDtypeAndTheOp) {
  EXPECT_EQ(
      two_ranks<c10::TypeError>([](Group& group) {
        group.all_reduce(torch::ones({2}), ReduceOp::kBand);
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_reduce] band needs an "
      "integer or boolean dtype: f32. Use sum, avg, min, max or product.");
  EXPECT_EQ(
      two_ranks<c10::TypeError>([](Group& group) {
        group.reduce_scatter(torch::ones({2}, at::kLong), 0, ReduceOp::kAvg);
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [reduce_scatter] avg needs "
      "a floating-point or complex dtype: i64. Use sum and divide.");
  EXPECT_EQ(
      two_ranks<c10::TypeError>([](Group& group) {
        group.all_reduce(torch::ones({2}, at::kComplexFloat), ReduceOp::kMax);
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_reduce] max needs an "
      "ordered dtype: c64. Complex dtypes support sum, avg and product.");
}

TEST(CollectiveErrors, NameTheDimension) {
  EXPECT_EQ(
      two_ranks<c10::IndexError>(
          [](Group& group) { group.all_gather(torch::ones({2}), 1); }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_gather] no dimension "
      "1 "
      "in a tensor of 1 dimensions. Use one from -1 to 0.");
}

TEST(CollectiveErrors, NameTheRootAndThePeer) {
  EXPECT_EQ(
      two_ranks<c10::IndexError>(
          [](Group& group) { group.broadcast(torch::ones({2}), 2); }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [broadcast] no rank 2 in "
      "\"world\", which has 2 ranks. Pass a position in the group, not a "
      "global "
      "rank.");
  EXPECT_EQ(
      two_ranks<c10::ValueError>([](Group& group) {
        if (group.rank() == 1) {
          group.send(torch::ones({2}), 1);
        }
      }),
      "[run_ranks] 1 of 2 ranks failed. rank 1: [send] rank 1 of \"world\" is "
      "the caller itself. Pass another rank.");
}

TEST(CollectiveErrors, CountTheInputs) {
  EXPECT_EQ(
      two_ranks<c10::ValueError>(
          [](Group& group) { group.all_to_all({torch::ones({2})}); }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_to_all] needs one "
      "tensor for each of the 2 ranks of \"world\": got 1. Pass empty tensors "
      "where nothing is sent.");
  EXPECT_EQ(
      two_ranks<c10::TypeError>([](Group& group) {
        group.all_to_all({torch::ones({2}), torch::ones({2}, at::kLong)});
      }),
      "[run_ranks] 2 of 2 ranks failed. every rank: [all_to_all] the tensors "
      "differ in dtype: f32 and i64. Convert them to one dtype.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
