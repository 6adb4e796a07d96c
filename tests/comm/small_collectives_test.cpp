// SPDX-License-Identifier: BSD-3-Clause
// Collectives over tensors that are small enough to travel inline in a notice.
// The expected result is computed by the same ranks from copies of all inputs
// with plain operators, and must be equal bit for bit.
#include <dtensor/comm/ranks.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <random>
#include <thread>

namespace dtensor {
namespace TEST_SOURCE {

constexpr ReduceOp kFloatOps[] = {
    ReduceOp::kSum,
    ReduceOp::kAvg,
    ReduceOp::kMin,
    ReduceOp::kMax,
    ReduceOp::kProduct};
constexpr ReduceOp kIntegerOps[] = {
    ReduceOp::kSum,
    ReduceOp::kMin,
    ReduceOp::kMax,
    ReduceOp::kProduct,
    ReduceOp::kBand,
    ReduceOp::kBor,
    ReduceOp::kBxor};
constexpr at::ScalarType kFloats[] = {
    at::kFloat,
    at::kDouble,
    at::kHalf,
    at::kBFloat16};
constexpr at::ScalarType kIntegers[] =
    {at::kLong, at::kInt, at::kShort, at::kByte, at::kBool};

GroupPtr tp() {
  std::vector<int64_t> ranks(static_cast<size_t>(get_world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return new_group(ranks, "tp");
}

// Returns values that differ between ranks, with sums that need rounding. Every
// rank can compute the input of every other.
at::Tensor input_of(int64_t rank, at::IntArrayRef sizes, at::ScalarType dtype) {
  int64_t numel = 1;
  for (const int64_t size : sizes) {
    numel *= size;
  }
  const at::Tensor index = torch::arange(numel, at::kDouble) + 1;
  // sin() is avoided: its vector library may take another code path in one of
  // several threads that call it first.
  const at::Tensor turns = index * (rank * 2 + 3) * 0.7390851332151607;
  const at::Tensor values = (turns.frac() * 200 - 100).view(sizes);
  return at::isIntegralType(dtype, true) ? values.to(at::kLong).to(dtype)
                                         : values.to(dtype);
}

std::vector<at::Tensor> inputs(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::vector<at::Tensor> result;
  for (int64_t rank = 0; rank < get_world_size(); ++rank) {
    result.push_back(input_of(rank, sizes, dtype));
  }
  return result;
}

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
at::Tensor reduced(const std::vector<at::Tensor>& terms, ReduceOp op) {
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

void expect_bits(const at::Tensor& got, const at::Tensor& expected) {
  ASSERT_EQ(got.scalar_type(), expected.scalar_type());
  ASSERT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(got.is_contiguous());
  EXPECT_FALSE(got.requires_grad());
  EXPECT_TRUE(torch::equal(got, expected)) << "got\n"
                                           << got << "\nexpected\n"
                                           << expected;
}

at::Tensor my_chunk(const at::Tensor& whole, int64_t dim) {
  const auto parts = whole.chunk(get_world_size(), dim);
  const auto rank = static_cast<size_t>(get_rank());
  return rank < parts.size() ? parts[rank].contiguous()
                             : whole.narrow(dim, 0, 0).contiguous();
}

class SmallCollectives : public testing::TestWithParam<int64_t> {
 protected:
  template <typename Fn>
  void on_ranks(const Fn& fn) {
    run_ranks(GetParam(), [&fn](int64_t) { fn(*tp()); });
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, SmallCollectives, testing::Values(2, 3, 4, 8));

void reduces(Group& group, at::ScalarType dtype, ReduceOp op) {
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{}, {1}, {37}, {5, 7}, {0}, {3, 0}}) {
    const auto terms = inputs(sizes, dtype);
    const auto& mine = terms[static_cast<size_t>(get_rank())];
    const at::Tensor expected = reduced(terms, op);
    expect_bits(group.all_reduce(mine, op), expected);
    for (int64_t dim = 0; dim < mine.dim(); ++dim) {
      expect_bits(group.reduce_scatter(mine, dim, op), my_chunk(expected, dim));
    }
  }
}

TEST_P(SmallCollectives, ReduceFloats) {
  on_ranks([](Group& group) {
    for (const at::ScalarType dtype : kFloats) {
      for (const ReduceOp op : kFloatOps) {
        reduces(group, dtype, op);
      }
    }
  });
}

TEST_P(SmallCollectives, ReduceIntegers) {
  on_ranks([](Group& group) {
    for (const at::ScalarType dtype : kIntegers) {
      for (const ReduceOp op : kIntegerOps) {
        reduces(group, dtype, op);
      }
    }
  });
}

TEST_P(SmallCollectives, ReduceComplexNumbers) {
  on_ranks([](Group& group) {
    reduces(group, at::kComplexFloat, ReduceOp::kSum);
    reduces(group, at::kComplexFloat, ReduceOp::kProduct);
  });
}

// Lengths from one element to twice the inline size, around every boundary of
// the loops: the results do not depend on the code path.
TEST_P(SmallCollectives, ReduceEveryLength) {
  on_ranks([](Group& group) {
    for (const int64_t size :
         {1,
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
          4096,
          4097}) {
      for (const at::ScalarType dtype :
           {at::kFloat, at::kLong, at::kBFloat16}) {
        const auto terms = inputs({size}, dtype);
        const auto& mine = terms[static_cast<size_t>(get_rank())];
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
          expect_bits(group.all_reduce(mine, op), reduced(terms, op));
        }
      }
    }
  });
}

// 2^18 + 5 elements: blocks and partial blocks, in every kind of loop.
TEST_P(SmallCollectives, AgreeWithLargeOnes) {
  on_ranks([](Group& group) {
    for (const at::ScalarType dtype :
         {at::kFloat, at::kDouble, at::kInt, at::kBFloat16}) {
      const auto terms = inputs({(1 << 18) + 5}, dtype);
      const auto& mine = terms[static_cast<size_t>(get_rank())];
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin}) {
        const at::Tensor whole = group.all_reduce(mine, op);
        expect_bits(whole, reduced(terms, op));
        const at::Tensor end = mine.slice(0, 1 << 18).clone();
        expect_bits(group.all_reduce(end, op), whole.slice(0, 1 << 18).clone());
      }
    }
  });
}

TEST_P(SmallCollectives, NaNWinsMinAndMax) {
  on_ranks([](Group& group) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const at::ScalarType dtype : kFloats) {
      for (int64_t who = 0; who < get_world_size(); ++who) {
        at::Tensor mine = torch::full({40}, double(get_rank()), dtype);
        if (get_rank() == who) {
          mine.slice(0, 0, 40, 3).fill_(nan);
        }
        for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
          const at::Tensor got = group.all_reduce(mine, op);
          EXPECT_EQ(got.isnan().sum().item<int64_t>(), 14);
          EXPECT_TRUE(got.slice(0, 0, 40, 3).isnan().all().item<bool>());
        }
      }
    }
  });
}

TEST_P(SmallCollectives, IntegersWrapAround) {
  on_ranks([](Group& group) {
    const int64_t most = std::numeric_limits<int64_t>::max();
    const at::Tensor got =
        group.all_reduce(torch::full({3}, most, at::kLong), ReduceOp::kSum);
    const auto n = static_cast<uint64_t>(get_world_size());
    const auto expected = static_cast<int64_t>(n * uint64_t(most));
    EXPECT_EQ(got[1].item<int64_t>(), expected);
  });
}

TEST_P(SmallCollectives, GatherAlongEveryDim) {
  on_ranks([](Group& group) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBool, at::kBFloat16}) {
      for (const std::vector<int64_t>& sizes :
           std::vector<std::vector<int64_t>>{
               {1}, {5}, {2, 3, 4}, {0}, {0, 3}, {3, 0}}) {
        const auto terms = inputs(sizes, dtype);
        const auto& mine = terms[static_cast<size_t>(get_rank())];
        for (int64_t dim = 0; dim < mine.dim(); ++dim) {
          expect_bits(group.all_gather(mine, dim), torch::cat(terms, dim));
        }
      }
    }
  });
}

// Every rank receives the root's values; the other inputs are not read.
TEST_P(SmallCollectives, BroadcastFromEveryRoot) {
  on_ranks([](Group& group) {
    for (int64_t root = 0; root < group.size(); ++root) {
      for (const std::vector<int64_t>& sizes :
           std::vector<std::vector<int64_t>>{{}, {3}, {2, 5}, {0}}) {
        expect_bits(
            group.broadcast(input_of(get_rank(), sizes, at::kDouble), root),
            input_of(root, sizes, at::kDouble));
      }
    }
  });
}

// Shapes that are equal on all ranks, that depend on the sender or on the
// receiver, and that exceed the inline size in total.
TEST_P(SmallCollectives, ExchangeParts) {
  using Shape = std::function<std::vector<int64_t>(int64_t from, int64_t to)>;
  const std::vector<Shape> shapes = {
      [](int64_t, int64_t) { return std::vector<int64_t>{}; },
      [](int64_t, int64_t) {
        return std::vector<int64_t>{3, 2};
      },
      [](int64_t, int64_t) {
        return std::vector<int64_t>{2, 0};
      },
      [](int64_t, int64_t) { return std::vector<int64_t>{600}; },
      [](int64_t from, int64_t) {
        return std::vector<int64_t>{from, 2};
      },
      [](int64_t, int64_t to) { return std::vector<int64_t>{to + 1}; }};
  on_ranks([&](Group& group) {
    const int64_t me = get_rank();
    const auto message = [](const Shape& shape, int64_t from, int64_t to) {
      return input_of(from * 16 + to, shape(from, to), at::kDouble);
    };
    for (const Shape& shape : shapes) {
      std::vector<at::Tensor> sent;
      std::vector<Sizes> known;
      for (int64_t rank = 0; rank < group.size(); ++rank) {
        sent.push_back(message(shape, me, rank));
        known.emplace_back(shape(rank, me));
      }
      const auto asked = group.all_to_all(sent);
      const auto told = group.all_to_all(sent, known);
      for (int64_t rank = 0; rank < group.size(); ++rank) {
        const auto expected = message(shape, rank, me);
        expect_bits(asked[static_cast<size_t>(rank)], expected);
        expect_bits(told[static_cast<size_t>(rank)], expected);
      }
    }
  });
}

// Strided, expanded and conjugated tensors, and tensors that require gradients,
// are supported. One rank may pass such a tensor where others pass a plain one.
TEST_P(SmallCollectives, TakeUnusualTensors) {
  on_ranks([](Group& group) {
    const bool odd = get_rank() % 2 == 1;
    const auto terms = inputs({4, 3}, at::kFloat);
    const at::Tensor mine = terms[static_cast<size_t>(get_rank())];
    const at::Tensor strided = odd ? mine.t().contiguous().t() : mine;
    expect_bits(
        group.all_reduce(strided, ReduceOp::kSum),
        reduced(terms, ReduceOp::kSum));
    expect_bits(group.all_gather(strided, 1), torch::cat(terms, 1));

    const at::Tensor leaf = mine.clone().requires_grad_();
    expect_bits(
        group.all_reduce(odd ? leaf : mine, ReduceOp::kSum),
        reduced(terms, ReduceOp::kSum));

    const auto complex = inputs({6}, at::kComplexFloat);
    const at::Tensor z =
        complex[static_cast<size_t>(get_rank())] * c10::complex<float>(1, 2);
    std::vector<at::Tensor> conjugated;
    for (const at::Tensor& term : complex) {
      conjugated.push_back((term * c10::complex<float>(1, -2)).resolve_conj());
    }
    expect_bits(
        group.all_reduce(z.conj(), ReduceOp::kSum),
        reduced(conjugated, ReduceOp::kSum));

    const at::Tensor expanded = torch::ones({1}).expand({50});
    expect_bits(
        group.all_reduce(expanded, ReduceOp::kSum),
        torch::full({50}, double(group.size())));
  });
}

TEST_P(SmallCollectives, WorkInInferenceMode) {
  on_ranks([](Group& group) {
    const c10::InferenceMode inference;
    const at::Tensor got = group.all_reduce(torch::ones({3}), ReduceOp::kSum);
    EXPECT_TRUE(got.is_inference());
    expect_bits(got, torch::full({3}, double(group.size())));
  });
}

// Rounds of random kinds and sizes, alternately small and large, with ranks at
// different speeds. The results of all rounds are kept and checked again at the
// end, so an overwritten result would be found.
TEST_P(SmallCollectives, ManyRoundsOfAnySize) {
  on_ranks([](Group& group) {
    std::mt19937 shared(7);
    std::mt19937 own(static_cast<unsigned>(get_rank()));
    std::vector<std::pair<at::Tensor, at::Tensor>> results;
    for (int64_t round = 0; round < 4000; ++round) {
      const int64_t size = shared() % 10 == 0 ? 3000 : 1 + shared() % 60;
      const at::Tensor mine =
          torch::full({size}, double(round % 100 + get_rank()));
      const auto n = static_cast<double>(group.size());
      const double sum = n * double(round % 100) + n * (n - 1) / 2;
      switch (shared() % 4) {
        case 0:
          results.push_back(
              {group.all_reduce(mine, ReduceOp::kSum),
               torch::full({size}, sum)});
          break;
        case 1: {
          const auto root = static_cast<int64_t>(shared()) % group.size();
          results.push_back(
              {group.broadcast(mine, root),
               torch::full({size}, double(round % 100 + root))});
          break;
        }
        case 2:
          results.push_back(
              {group.all_gather(mine, 0).view({-1, size}).select(1, 0),
               torch::arange(group.size()).to(at::kFloat) + round % 100});
          break;
        default:
          group.barrier();
      }
      if (own() % 500 == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    for (const auto& [got, expected] : results) {
      ASSERT_TRUE(torch::equal(got, expected)) << got << expected;
    }
  });
}

// The input may be modified as soon as the call has returned.
TEST_P(SmallCollectives, TheInputIsFreeAfterwards) {
  on_ranks([](Group& group) {
    at::Tensor mine = torch::empty({16});
    const auto n = static_cast<double>(group.size());
    for (int64_t round = 0; round < 2000; ++round) {
      mine.fill_(double(round));
      const at::Tensor got = group.all_reduce(mine, ReduceOp::kSum);
      mine.fill_(-1);
      ASSERT_EQ(got[7].item<double>(), n * double(round));
    }
  });
}

// Overlapping groups, the row and the column of a 2 x 2 grid, have separate
// channels.
TEST(SmallCollectivesOfGroups, DoNotMix) {
  run_ranks(4, [](int64_t rank) {
    const GroupPtr row = new_group({rank / 2 * 2, rank / 2 * 2 + 1}, "row");
    const GroupPtr column = new_group({rank % 2, rank % 2 + 2}, "column");
    for (int64_t round = 0; round < 1000; ++round) {
      const at::Tensor mine = torch::full({2}, double(rank + round));
      const at::Tensor in_row = row->all_reduce(mine, ReduceOp::kSum);
      const at::Tensor in_all = column->all_reduce(in_row, ReduceOp::kSum);
      ASSERT_EQ(in_row[0].item<double>(), 2 * round + rank / 2 * 4 + 1);
      ASSERT_EQ(in_all[1].item<double>(), 4 * round + 6);
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
