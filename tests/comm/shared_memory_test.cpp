// SPDX-License-Identifier: BSD-3-Clause
// Collectives of processes that share memory equal plain computations on the
// full data.
#include <dtensor/comm/group.h>
#include <dtensor/comm/processes/shared_layout_impl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "collective_inputs.h"
#include "on_processes.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

constexpr int64_t kSizes[] = {2, 3, 4, 8};

// Returns sizes 0 and 1 for some ranks, and 400 (several blocks) for others.
Sizes uneven_sizes(int64_t ranks) {
  Sizes sizes;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    sizes.push_back(rank % 3 == 2 ? 400 : rank % 3);
  }
  return sizes;
}

at::Tensor uneven(int64_t rank, int64_t ranks) {
  return input_of(rank, {3, uneven_sizes(ranks)[static_cast<size_t>(rank)], 5});
}

std::vector<at::Tensor> uneven_parts(int64_t ranks) {
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    parts.push_back(uneven(rank, ranks));
  }
  return parts;
}

// Returns the message from rank `from` to rank `to`; some messages are empty.
at::Tensor message(int64_t from, int64_t to, int64_t rows) {
  return input_of(from * 16 + to, {(from + 2 * to) % 4 * rows, 2});
}

TEST(SharedMemory, ReducesEveryDtype) {
  for (const int64_t ranks : {2, 3}) {
    on_processes(ranks, [](int64_t rank) {
      const GroupPtr group = world();
      for (const at::ScalarType dtype : kEveryDtype) {
        for (const ReduceOp op : kEveryOp) {
          if (!has_meaning(op, dtype)) {
            continue;
          }
          // Rows that are reduced inline in the notice, in one block, and in
          // several blocks.
          for (const int64_t rows : {2, 2000, 20000}) {
            expect_equal(
                group->all_reduce(input_of(rank, {rows, 1}, dtype), op),
                reduced(inputs({rows, 1}, dtype), op));
          }
          const auto sum = reduced(inputs({6, 50}, dtype), op);
          const auto part =
              group->reduce_scatter(input_of(rank, {6, 50}, dtype), 1, op);
          const auto chunks = sum.chunk(group->size(), 1);
          expect_equal(part, chunks[static_cast<size_t>(rank)].contiguous());
        }
      }
    });
  }
}

// Results can be resized, including those in shared memory.
TEST(SharedMemory, ResultsMayBeResized) {
  on_processes(2, [](int64_t rank) {
    const auto sum =
        world()->all_reduce(input_of(rank, {50'000}), ReduceOp::kSum);
    const auto before = sum.clone();
    sum.resize_({60'000});
    expect_equal(sum.narrow(0, 0, 50'000).contiguous(), before);
  });
}

TEST(SharedMemory, ReducesEverySize) {
  for (const int64_t ranks : kSizes) {
    on_processes(ranks, [](int64_t rank) {
      const GroupPtr group = world();
      for (const int64_t numel :
           {0, 1, 7, 1024, 1025, 2048, 2049, 5000, 16384, 70001}) {
        expect_equal(
            group->all_reduce(input_of(rank, {numel}), ReduceOp::kSum),
            reduced(inputs({numel}), ReduceOp::kSum));
      }
    });
  }
}

TEST(SharedMemory, GivesTheSameBitsToAll) {
  on_processes(3, [](int64_t rank) {
    const GroupPtr group = world();
    torch::manual_seed(static_cast<uint64_t>(rank));
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t numel : {100, 1500, 50000}) {
        const auto sum =
            group->all_reduce(torch::randn({numel}).to(dtype), ReduceOp::kAvg);
        for (const auto& other : group->all_gather(sum, 0).chunk(3)) {
          EXPECT_TRUE(torch::equal(other, sum));
        }
      }
    }
  });
}

// Results lie in the shared arena while it has space, and stay valid as long as
// they are referenced.
TEST(SharedMemory, KeepsResults) {
  const auto body = [](int64_t rank) {
    const int64_t numel = detail::kArenaBytes / 4 / 5 * 2; // two fit
    std::vector<at::Tensor> kept;
    {
      const GroupPtr group = world();
      for (int64_t round = 0; round < 5; ++round) {
        const auto sum = group->all_reduce(
            torch::full({numel}, static_cast<float>(rank + round)),
            ReduceOp::kSum);
        if (rank == 0 || round > 2) {
          kept.push_back(sum);
        }
      }
    }
    for (size_t i = 0; i < kept.size(); ++i) {
      const auto round = static_cast<int64_t>(rank == 0 ? i : i + 3);
      const auto expected = static_cast<float>(1 + 2 * round);
      EXPECT_TRUE(torch::equal(kept[i], torch::full({numel}, expected)));
      kept[i].add_(1);
    }
  };
  on_processes(2, body, {.timeout = std::chrono::minutes(1)});
}

TEST(SharedMemory, GathersAlongEveryDim) {
  for (const int64_t ranks : kSizes) {
    on_processes(ranks, [ranks](int64_t rank) {
      const GroupPtr group = world();
      const auto whole = torch::cat(uneven_parts(ranks), 1);
      const auto mine = uneven(rank, ranks);
      expect_equal(group->all_gather(mine, 1), whole);
      expect_equal(group->all_gather(mine, 1, uneven_sizes(ranks)), whole);
      const auto rows = mine.transpose(0, 1);
      expect_equal(
          group->all_gather(rows, 0), whole.transpose(0, 1).contiguous());
      for (const int64_t numel : {1, 1000, 9000, 40'000, 90'000}) {
        for (const int64_t dim : {0, -1}) {
          expect_equal(
              group->all_gather(input_of(rank, {2, numel}), dim),
              torch::cat(inputs({2, numel}), dim));
        }
      }
      EXPECT_EQ(group->all_gather(torch::empty({0, 4}), 0).size(0), 0);
    });
  }
}

// Long gathers work if one member has no rows and another has no space left in
// its arena.
TEST(SharedMemory, GathersToAll) {
  on_processes(3, [](int64_t rank) {
    const GroupPtr group = world();
    const int64_t rows = detail::kArenaBytes / 4 / 1000 / 5 * 2;
    const Sizes sizes = {rows - 100, 0, 100};
    std::vector<at::Tensor> kept;
    for (int64_t round = 0; round < 4; ++round) {
      for (const int64_t dim : {0, 1}) {
        Sizes shape = {1000, 1000};
        shape[static_cast<size_t>(dim)] = sizes[static_cast<size_t>(rank)];
        shape[static_cast<size_t>(1 - dim)] = 1000;
        const auto value = static_cast<float>(rank + round);
        const auto all =
            group->all_gather(torch::full(shape, value), dim, sizes);
        EXPECT_TRUE(all.narrow(dim, 0, sizes[0])
                        .eq(static_cast<float>(round))
                        .all()
                        .item<bool>());
        EXPECT_TRUE(all.narrow(dim, sizes[0], sizes[2])
                        .eq(static_cast<float>(2 + round))
                        .all()
                        .item<bool>());
        if (rank == 0) {
          kept.push_back(all);
        }
      }
    }
  });
}

TEST(SharedMemory, ReducesAndCuts) {
  for (const int64_t ranks : kSizes) {
    on_processes(ranks, [ranks](int64_t rank) {
      const GroupPtr group = world();
      const auto me = static_cast<size_t>(rank);
      for (const Sizes& shape : {Sizes{9, 5}, Sizes{9, 700}, Sizes{9, 7000}}) {
        const auto mine = input_of(rank, shape);
        const auto sum = reduced(inputs(shape), ReduceOp::kSum);
        for (const int64_t dim : {0, 1}) {
          const auto chunks = sum.chunk(ranks, dim);
          const auto part = group->reduce_scatter(mine, dim, ReduceOp::kSum);
          if (me < chunks.size()) {
            expect_equal(part, chunks[me].contiguous());
          } else {
            EXPECT_EQ(part.numel(), 0);
          }
        }
        Sizes given(static_cast<size_t>(ranks), 0);
        given.front() = 1;
        given.back() = shape[1] - 1; // the ranks between get nothing
        const auto parts = sum.split_with_sizes(given, 1);
        expect_equal(
            group->reduce_scatter(mine, 1, ReduceOp::kSum, given),
            parts[me].contiguous());
      }
    });
  }
}

TEST(SharedMemory, ExchangesParts) {
  for (const int64_t ranks : kSizes) {
    on_processes(ranks, [ranks](int64_t rank) {
      const GroupPtr group = world();
      for (const int64_t rows : {1, 30, 3000}) {
        std::vector<at::Tensor> sent;
        std::vector<Sizes> shapes;
        for (int64_t other = 0; other < ranks; ++other) {
          sent.push_back(message(rank, other, rows));
          shapes.emplace_back(message(other, rank, rows).sizes());
        }
        for (const auto& known : {std::vector<Sizes>(), shapes}) {
          const auto received = group->all_to_all(sent, known);
          for (int64_t other = 0; other < ranks; ++other) {
            expect_equal(
                received[static_cast<size_t>(other)],
                message(other, rank, rows));
          }
        }
      }
      // From sharded along dimension 1 to sharded along dimension 0.
      const auto whole = torch::cat(uneven_parts(ranks), 1);
      const auto chunks = whole.chunk(ranks, 0);
      const auto got = group->shard_dim_alltoall(uneven(rank, ranks), 1, 0);
      if (rank < static_cast<int64_t>(chunks.size())) {
        expect_equal(got, chunks[static_cast<size_t>(rank)].contiguous());
      } else {
        EXPECT_EQ(got.numel(), 0);
      }
    });
  }
}

TEST(SharedMemory, HasRoots) {
  on_processes(3, [](int64_t rank) {
    const GroupPtr group = world();
    for (int64_t root = 0; root < 3; ++root) {
      for (const int64_t numel : {0, 5, 1024, 30000}) {
        expect_equal(
            group->broadcast(input_of(rank, {numel}), root),
            input_of(root, {numel}));
      }
      std::vector<at::Tensor> parts;
      for (int64_t to = 0; rank == root && to < 3; ++to) {
        parts.push_back(message(root, to, 900));
      }
      const auto like = torch::empty_like(message(root, rank, 900));
      expect_equal(group->scatter(parts, like, root), message(root, rank, 900));
      const auto all = group->gather(message(rank, 0, 900), root);
      ASSERT_EQ(all.size(), rank == root ? 3U : 0U);
      for (size_t from = 0; from < all.size(); ++from) {
        expect_equal(all[from], message(static_cast<int64_t>(from), 0, 900));
      }
    }
  });
}

TEST(SharedMemory, SendsStringsAndMessages) {
  on_processes(3, [](int64_t rank) {
    const GroupPtr group = world();
    const std::vector<std::string> texts = {
        "", "rank 1", std::string(9000, '\0')};
    EXPECT_EQ(
        group->all_gather_strings(texts[static_cast<size_t>(rank)]), texts);
    group->barrier();
    const int64_t next = (rank + 1) % 3;
    const int64_t before = (rank + 2) % 3;
    const auto take = [&](int64_t rows, int64_t tag) {
      const auto expected = input_of(before, {rows, 3}, at::kDouble);
      expect_equal(
          group->recv(torch::empty_like(expected), before, tag), expected);
    };
    // All ranks first send more than a ring holds, then receive by tag, after a
    // collective.
    for (const int64_t rows : {1, 0, 50000, 7}) {
      group->send(input_of(rank, {rows, 3}, at::kDouble), next, rows % 2);
    }
    group->barrier();
    take(1, 1);
    take(7, 1);
    take(0, 0);
    take(50000, 0);
    const auto many = torch::ones({1, 1, 1, 1, 1, 1, 1, 1, 2});
    group->send(many, next, 0);
    expect_equal(group->recv(many, before, 0), many);
    group->send(torch::tensor(3.0), next, 0);
    EXPECT_EQ(group->recv(torch::tensor(0.0), before, 0).item<double>(), 3.0);
  });
}

TEST(SharedMemory, HasSubgroups) {
  on_processes(4, [](int64_t rank) {
    const GroupPtr all = world();
    const bool even = rank % 2 == 0;
    const GroupPtr mine =
        even ? new_group({2, 0}, "even") : new_group({1, 3}, "odd");
    const auto x = torch::full({3000}, static_cast<double>(rank));
    for (int round = 0; round < 20; ++round) {
      EXPECT_EQ(
          mine->all_reduce(x, ReduceOp::kSum)[7].item<double>(),
          even ? 2.0 : 4.0);
      EXPECT_EQ(all->all_reduce(x, ReduceOp::kMax)[2999].item<double>(), 3.0);
    }
    const auto ordered = mine->all_gather(torch::tensor({rank}), 0);
    EXPECT_EQ(ordered[0].item<int64_t>(), even ? 2 : 1);
  });
}

TEST(SharedMemory, EntersAsynchronousCollectives) {
  on_processes(2, [](int64_t rank) {
    const GroupPtr group = world();
    const auto mine = input_of(rank, {3, 2});
    const auto sum = reduced(inputs({3, 2}), ReduceOp::kSum);
    at::Tensor out = torch::empty({3, 2});
    const auto a = group->all_reduce_async(mine, ReduceOp::kSum, out);
    const auto b = group->all_gather_async(mine, 1, 4);
    EXPECT_TRUE(a->wait().is_same(out));
    expect_equal(out, sum);
    expect_equal(b->wait(), torch::cat(inputs({3, 2}), 1));
  });
}

// Runs short and long collectives of all kinds, in a random order that is equal
// on all ranks.
void mix(int64_t rank, int64_t rounds) {
  const GroupPtr group = world();
  const int64_t ranks = group->size();
  uint64_t state = 1;
  for (int64_t round = 0; round < rounds; ++round) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto drawn = static_cast<int64_t>(state >> 33);
    const int64_t numel = drawn % 100 == 0 ? 5000 : drawn % 50 + 1;
    const auto x = torch::full({numel}, round + rank);
    int64_t expected = round;
    at::Tensor got;
    switch (drawn / 100 % 5) {
      case 0:
        got = group->all_reduce(x, ReduceOp::kMin);
        break;
      case 1:
        got = group->all_gather(x, 0).narrow(0, 0, numel);
        break;
      case 2:
        got = group->broadcast(x, 0);
        break;
      case 3:
        got = group->reduce_scatter(x.repeat(ranks), 0, ReduceOp::kMax);
        expected = round + ranks - 1;
        break;
      default:
        got = group->all_to_all(
            std::vector<at::Tensor>(static_cast<size_t>(ranks), x))[0];
    }
    ASSERT_TRUE(torch::equal(got, torch::full({numel}, expected))) << round;
  }
}

TEST(SharedMemory, LastsForManyRounds) {
  on_processes(2, [](int64_t rank) { mix(rank, 20000); });
  on_processes(4, [](int64_t rank) { mix(rank, 3000); });
}

} // namespace TEST_SOURCE
} // namespace dtensor
