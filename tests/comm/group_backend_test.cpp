// SPDX-License-Identifier: BSD-3-Clause
// A backend with the seven required functions supports every collective. Tests
// of the default implementations of GroupBackend, and of checked().
#include <dtensor/comm/group_backend.h>
#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "collective_inputs.h"
#include "expect_error.h"
#include "store_ranks.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

constexpr int64_t kRanks = 3;

// Returns a tensor of shape [3, rank % 3, 2]: the size along dimension 1
// depends on the rank.
at::Tensor uneven(int64_t rank) {
  return input_of(rank, {3, rank % 3, 2});
}

std::vector<at::Tensor> uneven_parts() {
  return {uneven(0), uneven(1), uneven(2)};
}

// Returns the message from rank `from` to rank `to`.
at::Tensor message(int64_t from, int64_t to) {
  return input_of(from * 16 + to, {(from + 2 * to) % 4, 2});
}

TEST(GroupBackend, GathersAlongEveryDim) {
  on_store_ranks(kRanks, [](int64_t rank) {
    const GroupPtr group = world();
    EXPECT_TRUE(group->exchanges_sizes());
    const auto whole = torch::cat(uneven_parts(), 1);
    expect_equal(group->all_gather(uneven(rank), 1), whole);
    expect_equal(group->all_gather(uneven(rank), 1, {0, 1, 2}), whole);
    const auto rows = uneven(rank).transpose(0, 1);
    expect_equal(
        group->all_gather(rows, 0), whole.transpose(0, 1).contiguous());
    expect_equal(
        group->all_gather(input_of(rank, {2, 2}), -1, {2, 2, 2}),
        torch::cat(inputs({2, 2}), 1));
    EXPECT_EQ(group->all_gather(torch::empty({0, 4}), 0).size(0), 0);
  });
}

// Returns the error of two ranks that call two modules in a different order:
// both call the same collective with the same sizes.
std::string told_of_other_modules() {
  std::string told;
  on_store_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    torch::nn::Sequential model(
        torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    parallelize_module(*model, mesh, {{"*", RowwiseParallel()}});
    const torch::NoGradGuard no_grad;
    const auto text = error_of<c10::ValueError>([&] {
      model[static_cast<size_t>(rank)]->as<torch::nn::Linear>()->forward(
          torch::ones({3, 2}));
    });
    if (rank == 0) {
      told = text;
    }
  });
  return told;
}

TEST(GroupBackend, ComparesWhatCollectivesAreFor) {
  EXPECT_EQ(
      told_of_other_modules(),
      "[all_reduce] ranks of \"tp\" disagree: rank 0 calls all_reduce of "
      "f32[3, 4] with sum for aten::addmm, f32[3, 4] on (tp=2): P(sum) to R, "
      "in module \"0\"; rank 1 calls all_reduce of f32[3, 4] with sum for "
      "aten::addmm, f32[3, 4] on (tp=2): P(sum) to R, in module \"1\". Call "
      "the same collective with the same sizes on every rank.");
}

// A redistribution does not match the equivalent collective called directly.
TEST(GroupBackend, ComparesLayouts) {
  on_store_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto sum = distribute_tensor(torch::ones({3, 4}), mesh, {Partial()});
    const std::string text = error_of<c10::ValueError>([&] {
      if (rank == 0) {
        redistribute(sum, {Replicate()});
      } else {
        get_group(mesh).all_reduce(torch::ones({3, 4}), ReduceOp::kSum);
      }
    });
    EXPECT_EQ(
        text,
        "[all_reduce] ranks of \"tp\" disagree: rank 0 calls all_reduce of "
        "f32[3, 4] with sum for f32[3, 4] on (tp=2): P(sum) to R; rank 1 calls "
        "all_reduce of f32[3, 4] with sum. Call the same collective with the "
        "same sizes on every rank.");
  });
}

TEST(GroupBackend, ReducesAndCuts) {
  on_store_ranks(kRanks, [](int64_t rank) {
    const GroupPtr group = world();
    for (const at::ScalarType dtype : kEveryDtype) {
      for (const ReduceOp op : kEveryOp) {
        if (has_meaning(op, dtype)) {
          expect_equal(
              group->all_reduce(input_of(rank, {2, 2}, dtype), op),
              reduced(inputs({2, 2}, dtype), op));
        }
      }
    }
    const auto sum = reduced(inputs({4, 5}), ReduceOp::kSum);
    const auto mine = input_of(rank, {4, 5});
    for (const int64_t dim : {0, 1}) {
      const auto chunks = sum.chunk(kRanks, dim); // sizes 2 2 0 and 2 2 1
      const auto part = group->reduce_scatter(mine, dim, ReduceOp::kSum);
      if (rank < static_cast<int64_t>(chunks.size())) {
        expect_equal(part, chunks[static_cast<size_t>(rank)].contiguous());
      } else {
        EXPECT_EQ(part.numel(), 0);
      }
      const auto given =
          group->reduce_scatter(mine, dim, ReduceOp::kSum, {1, 0, 3 + dim});
      const int64_t begin = rank == 0 ? 0 : 1;
      const int64_t size = rank == 0 ? 1 : rank == 1 ? 0 : 3 + dim;
      expect_equal(given, sum.narrow(dim, begin, size).contiguous());
    }
  });
}

TEST(GroupBackend, ExchangesParts) {
  on_store_ranks(kRanks, [](int64_t rank) {
    const GroupPtr group = world();
    std::vector<at::Tensor> sent;
    std::vector<Sizes> shapes;
    for (int64_t other = 0; other < kRanks; ++other) {
      sent.push_back(message(rank, other));
      shapes.emplace_back(message(other, rank).sizes());
    }
    for (const auto& known : {std::vector<Sizes>(), shapes}) {
      const auto received = group->all_to_all(sent, known);
      for (int64_t other = 0; other < kRanks; ++other) {
        expect_equal(
            received[static_cast<size_t>(other)], message(other, rank));
      }
    }
    // From sharded along dimension 1, with a different size on each rank, to
    // sharded along dimension 0.
    const auto expected =
        torch::cat(uneven_parts(), 1).narrow(0, rank, 1).contiguous();
    expect_equal(group->shard_dim_alltoall(uneven(rank), 1, 0), expected);
    expect_equal(
        group->shard_dim_alltoall(uneven(rank), 1, 0, {0, 1, 2}), expected);
  });
}

TEST(GroupBackend, HasRoots) {
  on_store_ranks(kRanks, [](int64_t rank) {
    const GroupPtr group = world();
    for (int64_t root = 0; root < kRanks; ++root) {
      expect_equal(
          group->broadcast(input_of(rank, {2, 3}), root),
          input_of(root, {2, 3}));
      std::vector<at::Tensor> parts;
      for (int64_t to = 0; rank == root && to < kRanks; ++to) {
        parts.push_back(message(root, to));
      }
      expect_equal(
          group->scatter(parts, torch::empty_like(message(root, rank)), root),
          message(root, rank));
      const auto all = group->gather(message(rank, 0), root);
      ASSERT_EQ(all.size(), rank == root ? 3U : 0U);
      for (size_t from = 0; from < all.size(); ++from) {
        expect_equal(all[from], message(static_cast<int64_t>(from), 0));
      }
    }
  });
}

TEST(GroupBackend, SendsStringsAndMessages) {
  on_store_ranks(kRanks, [](int64_t rank) {
    const GroupPtr group = world();
    const std::vector<std::string> texts = {"", "rank 1", std::string(1, '\0')};
    EXPECT_EQ(
        group->all_gather_strings(texts[static_cast<size_t>(rank)]), texts);
    EXPECT_EQ(group->all_gather_strings(""), std::vector<std::string>(3));
    group->barrier();
    group->send(message(rank, 0), (rank + 1) % kRanks, 4);
    const int64_t before = (rank + 2) % kRanks;
    expect_equal(
        group->recv(torch::empty_like(message(before, 0)), before, 4),
        message(before, 0));
  });
}

TEST(GroupBackend, GetsPlainContiguousTensors) {
  on_store_ranks(kRanks, [](int64_t rank) {
    const GroupPtr group = world();
    const auto sum = reduced(inputs({2, 3}), ReduceOp::kSum);
    const auto leaf = input_of(rank, {2, 3}).requires_grad_();
    const auto total = group->all_reduce(leaf.t(), ReduceOp::kSum);
    EXPECT_FALSE(total.requires_grad());
    expect_equal(total, sum.t().contiguous());
    const auto lazy = torch::conj(torch::complex(
        torch::ones({2}), torch::full({2}, static_cast<float>(rank + 1))));
    EXPECT_TRUE(lazy.is_conj());
    const auto got = group->all_gather(lazy, 0, {2, 2, 2});
    EXPECT_EQ(got[4].item<c10::complex<float>>().imag(), -3.0F);
  });
}

TEST(GroupBackend, EntersAsynchronousCollectives) {
  on_store_ranks(kRanks, [](int64_t rank) {
    const GroupPtr group = world();
    const auto mine = input_of(rank, {3, 2});
    const auto sum = reduced(inputs({3, 2}), ReduceOp::kSum);
    const auto whole = torch::cat(uneven_parts(), 1);
    at::Tensor out = torch::empty({3, 2});
    const auto a = group->all_reduce_async(mine, ReduceOp::kSum, out);
    const auto b = group->all_gather_async(uneven(rank), 1, 3);
    const auto c = group->all_gather_async(uneven(rank), 1, Sizes{0, 1, 2});
    const auto d = group->reduce_scatter_async(mine, 0, ReduceOp::kSum);
    const auto e = group->shard_dim_alltoall_async(uneven(rank), 1, 0);
    EXPECT_TRUE(a->wait().is_same(out));
    expect_equal(out, sum);
    expect_equal(b->wait(), whole);
    expect_equal(c->wait(), whole);
    expect_equal(d->wait(), sum.narrow(0, rank, 1));
    expect_equal(e->wait(), whole.narrow(0, rank, 1).contiguous());
  });
}

TEST(GroupBackend, IsObservedAsAnyOther) {
  on_store_ranks(kRanks, [](int64_t rank) {
    CommDebugMode mode;
    world()->all_gather(uneven(rank), 1, {0, 1, 2});
    world()->barrier(); // its internal parts and checks are not observed
    EXPECT_EQ(mode.get_total_counts(), 2);
  });
}

// The errors of the same calls in a world of threads and in a StoreWorld.
using Body = std::function<void(Group&, int64_t rank)>;

std::string in_threads(const Body& body) {
  std::string text = error_of<c10::ValueError>([&] {
    run_ranks(2, [&](int64_t rank) { body(*new_group({0, 1}, "tp"), rank); });
  });
  // Remove the text that run_ranks() adds to any error.
  const std::string head = "[run_ranks] 2 of 2 ranks failed. every rank: ";
  const std::string place = " (in barrier on \"tp\")";
  if (text.substr(0, head.size()) == head) {
    text = text.substr(head.size());
  }
  return text.substr(0, text.find(place));
}

std::string over_a_store(const Body& body) {
  std::vector<std::string> texts(2);
  on_store_ranks(2, [&](int64_t rank) {
    const GroupPtr group = new_group({0, 1}, "tp");
    texts[static_cast<size_t>(rank)] =
        error_of<c10::ValueError>([&] { body(*group, rank); });
    group->barrier(); // the group is still usable
  });
  EXPECT_EQ(texts[0], texts[1]);
  return texts[0];
}

void expect_same_text(const Body& body) {
  const std::string text = over_a_store(body);
  EXPECT_EQ(text, in_threads(body));
  EXPECT_EQ(text.front(), '[') << text;
}

TEST(CheckedBackend, TellsDisagreementsAsThreadsDo) {
  const auto kSum = ReduceOp::kSum;
  const auto x = torch::ones({4});
  const auto two = [](int64_t a, int64_t b) {
    return std::vector<at::Tensor>{torch::ones({a}), torch::ones({b})};
  };
  const std::vector<Body> bodies = {
      [&](Group& g, int64_t rank) {
        rank == 0 ? g.all_reduce(x, kSum) : g.all_gather(x, 0);
      },
      [&](Group& g, int64_t rank) {
        g.all_reduce(torch::ones({4, 1 + rank}), kSum);
      },
      [&](Group& g, int64_t rank) {
        g.all_reduce(rank == 0 ? x : x.to(at::kDouble), kSum);
      },
      [&](Group& g, int64_t rank) {
        g.all_reduce(x, rank == 0 ? kSum : ReduceOp::kMax);
      },
      [&](Group& g, int64_t rank) {
        g.all_gather(torch::ones({4, 1 + rank}), 0);
      },
      [&](Group& g, int64_t rank) {
        g.reduce_scatter(torch::ones({4, 4}), rank, kSum);
      },
      [&](Group& g, int64_t rank) {
        const Sizes sizes = rank == 0 ? Sizes{1, 3} : Sizes{3, 1};
        g.reduce_scatter(x, 0, kSum, sizes);
      },
      [&](Group& g, int64_t rank) {
        g.shard_dim_alltoall(torch::ones({4, 4, 4}), 0, 1 + rank);
      },
      [&](Group& g, int64_t rank) {
        // Rank 1 sends 3 elements and rank 0 expects 2.
        const std::vector<Sizes> shapes = {{1}, {2}};
        g.all_to_all(rank == 0 ? two(1, 1) : two(3, 2), shapes);
      },
      [&](Group& g, int64_t rank) { g.broadcast(x, rank); },
      [&](Group& g, int64_t rank) { g.gather(x, rank); },
      [&](Group& g, int64_t rank) {
        g.scatter(rank == 0 ? two(2, 3) : two(0, 0), torch::ones({4}), 0);
      },
      [&](Group& g, int64_t rank) {
        rank == 0 ? g.barrier() : void(g.all_gather_strings("hello"));
      },
      [&](Group& g, int64_t) {
        g.all_gather_async(torch::ones({3}), 0, 7)->wait();
      },
  };
  for (const Body& body : bodies) {
    expect_same_text(body);
  }
}

TEST(CheckedBackend, ComparesWhatRanksAssume) {
  const Body body = [](Group& group, int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto part = torch::ones({3 - rank});
    const auto d = DTensor::from_local(part, mesh, {Shard(0)});
    get_group(mesh).barrier();
    group.barrier();
  };
  expect_same_text(body);
}

} // namespace TEST_SOURCE
} // namespace dtensor
