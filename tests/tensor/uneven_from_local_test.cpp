// SPDX-License-Identifier: BSD-3-Clause
// from_local without a shape assumes that all shards have the size of this
// rank's. If this is wrong, ranks must not continue with different global
// shapes, so the next collective throws on all ranks.
#include "support.h"

#include <functional>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;
using Use = std::function<void(const DTensor&)>;

const char* const kUneven =
    "[from_local] ranks of \"a\" disagree about a tensor made without a global "
    "shape: rank 0 makes f64[6, 4] in S(0) from its f64[3, 4]; rank 1 makes "
    "f64[4, 4] in S(0) from its f64[2, 4]. Pass the global shape to from_local "
    "on every rank.";

DTensor rows(int64_t count, const DeviceMesh& mesh) {
  return DTensor::from_local(counting({count, 4}), mesh, {Shard(0)});
}

// Returns the error on every rank for a tensor with 3 rows on this rank and 2
// rows on the other rank.
std::string error_of_use(const Use& use) {
  std::string errors[2];
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = mesh_of({2});
    const auto d = rows(3 - rank, mesh);
    errors[rank] = error_of<c10::ValueError>([&] { use(d); });
  });
  EXPECT_EQ(errors[0], errors[1]);
  return errors[0];
}

TEST(UnevenFromLocal, EndsInTheFirstCollective) {
  const std::vector<std::pair<const char*, Use>> uses = {
      {"full_tensor", [](const DTensor& d) { d.full_tensor(); }},
      {"sum", [](const DTensor& d) { whole(d.sum()); }},
      {"mean", [](const DTensor& d) { whole(d.mean()); }},
      {"item", [](const DTensor& d) { d.sum().item<double>(); }},
      {"softmax", [](const DTensor& d) { whole(d.softmax(0)); }},
      {"transpose", [](const DTensor& d) { whole(d.t() * 2); }},
      {"matmul", [](const DTensor& d) { whole(d.matmul(d.t())); }},
      {"inner product", [](const DTensor& d) { whole(d.t().matmul(d)); }},
      {"view", [](const DTensor& d) { whole(d.flatten()); }},
      {"cat",
       [](const DTensor& d) {
         whole(at::cat({d, d}, 1));
       }},
      {"to another dim",
       [](const DTensor& d) { to_local(d.redistribute({Shard(1)})); }},
      {"backward",
       [](const DTensor& d) {
         auto leaf = DTensor(d.detach());
         leaf.requires_grad_();
         const auto loss = leaf.sum(0).pow(2).sum();
         loss.backward(at::ones_like(loss));
       }},
  };
  for (const auto& [name, use] : uses) {
    EXPECT_EQ(error_of_use(use), kUneven) << name;
  }
}

TEST(UnevenFromLocal, EndsInCollectivesOfAnySort) {
  const auto group = [](const DTensor& d) -> Group& {
    return get_group(d.device_mesh(), int64_t{0});
  };
  const auto x = at::ones({2});
  const std::vector<Use> uses = {
      [&](const DTensor& d) { group(d).barrier(); },
      [&](const DTensor& d) { group(d).all_reduce(x, ReduceOp::kSum); },
      [&](const DTensor& d) { group(d).broadcast(x, 0); },
      [&](const DTensor& d) { group(d).all_gather_strings("text"); },
      [&](const DTensor& d) {
        group(d).all_to_all({x, x});
      }};
  for (const auto& use : uses) {
    EXPECT_EQ(error_of_use(use), kUneven);
  }
}

// Ranks compare by the set of ranks, so a new group of the same ranks detects
// the error.
TEST(UnevenFromLocal, EndsInAGroupOfTheSameRanks) {
  EXPECT_EQ(
      error_of_use([](const DTensor&) {
        new_group({0, 1}, "a")->barrier();
      }),
      kUneven);
}

// The error recurs, because the tensor stays inconsistent.
TEST(UnevenFromLocal, IsAnErrorAgain) {
  EXPECT_EQ(
      error_of_use([](const DTensor& d) {
        EXPECT_EQ(error_of<c10::ValueError>([&] { d.full_tensor(); }), kUneven);
        d.full_tensor();
      }),
      kUneven);
}

TEST(UnevenFromLocal, IsAnErrorAgainAfterAnAsynchronousOne) {
  EXPECT_EQ(
      error_of_use([](const DTensor& d) {
        const auto wait = [&] {
          to_local(d.redistribute({Replicate()}, {.async_op = true}));
        };
        EXPECT_EQ(error_of<c10::ValueError>(wait), kUneven);
        d.full_tensor();
      }),
      kUneven);
}

// A server rejects the request and continues with the next one.
TEST(UnevenFromLocal, LeavesTheGroupUsableOnceTheTensorIsGone) {
  Ranks ranks(2);
  for (int request = 0; request < 3; ++request) {
    ranks.run([](int64_t rank) {
      const auto mesh = mesh_of({2});
      const auto part = counting({3 - rank, 4});
      EXPECT_EQ(
          error_of<c10::ValueError>([&] {
            whole(DTensor::from_local(part, mesh, {Shard(0)}).mean());
          }),
          kUneven);
      expect_same(
          get_group(mesh, "a").all_reduce(at::ones({2}), ReduceOp::kSum),
          at::full({2}, 2.0F));
      expect_same(
          whole(DTensor::from_local(at::ones({2, 4}), mesh, {Shard(0)})),
          at::ones({4, 4}));
      const auto large = at::ones({3000});
      expect_same(
          get_group(mesh, "a").all_reduce(large, ReduceOp::kSum), large * 2);
    });
  }
}

TEST(UnevenFromLocal, LeavesTheGroupUsableAfterAnAsynchronousOne) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = mesh_of({2});
    EXPECT_EQ(
        error_of<c10::ValueError>([&] {
          const auto d = rows(3 - rank, mesh);
          DTensor(d.redistribute({Replicate()}, {.async_op = true})).to_local();
        }),
        kUneven);
    get_group(mesh, "a").barrier();
    expect_same(
        whole(DTensor::from_local(at::ones({2, 4}), mesh, {Shard(0)})),
        at::ones({4, 4}));
  });
}

// If ranks call different collectives, the error names the collectives instead
// of the shapes. A typical cause is that only rank 0 evaluates or saves.
TEST(UnevenFromLocal, IsNotBlamedForRanksThatCallDifferentCollectives) {
  const auto error_of_ranks = [](const std::function<void(Group&)>& on_rank_0,
                                 const std::function<void(Group&)>& on_rank_1) {
    std::string errors[2];
    run_ranks(2, [&](int64_t rank) {
      const auto mesh = mesh_of({2});
      auto& group = get_group(mesh, "a");
      if (rank == 0) {
        DTensor::from_local(at::ones({8, 4}), mesh, {Replicate()});
      }
      errors[rank] = error_of<c10::ValueError>(
          [&] { (rank == 0 ? on_rank_0 : on_rank_1)(group); });
    });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  };
  const auto sum = [](int64_t size) {
    return [size](Group& group) {
      group.all_reduce(at::ones({size}), ReduceOp::kSum);
    };
  };
  EXPECT_EQ(
      error_of_ranks(sum(8), [](Group& group) { group.barrier(); }),
      "[all_reduce] ranks of \"a\" disagree: rank 0 calls all_reduce of f32[8] "
      "with sum; rank 1 calls barrier. Call the same collective with the same "
      "sizes on every rank.");
  EXPECT_EQ(
      error_of_ranks(sum(8), sum(6)),
      "[all_reduce] ranks of \"a\" disagree: rank 0 calls all_reduce of f32[8] "
      "with sum; rank 1 calls all_reduce of f32[6] with sum. Call the same "
      "collective with the same sizes on every rank.");
}

// The ranks have batches of different sizes.
TEST(UnevenFromLocal, IsNotBlamedForOtherReplicatedTensors) {
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = mesh_of({2});
    DTensor::from_local(at::ones({8 - rank, 4}), mesh, {Replicate()});
    EXPECT_EQ(
        error_of<c10::ValueError>([&] {
          get_group(mesh, "a").all_reduce(
              at::ones({8 - rank, 2}), ReduceOp::kSum);
        }),
        "[all_reduce] ranks of \"a\" disagree: rank 0 calls all_reduce of "
        "f32[8, 2] with sum; rank 1 calls all_reduce of f32[7, 2] with sum. "
        "Call the same collective with the same sizes on every rank.");
  });
}

TEST(UnevenFromLocal, NamesTheFirstTensorThatDiffers) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = mesh_of({2});
    DTensor::from_local(at::ones({2}), mesh, {Replicate()});
    const auto d =
        DTensor::from_local(at::ones({2, 1 + rank}), mesh, {Shard(1)});
    rows(2, mesh);
    EXPECT_EQ(
        error_of<c10::ValueError>([&] { full_tensor(d); }),
        "[from_local] ranks of \"a\" disagree about a tensor made without a "
        "global shape: rank 0 makes f32[2, 2] in S(1) from its f32[2, 1]; rank "
        "1 makes f32[2, 4] in S(1) from its f32[2, 2]. Pass the global shape "
        "to from_local on every rank.");
  });
}

TEST(UnevenFromLocal, CountsTensorsToo) {
  run_ranks(3, [](int64_t rank) {
    const auto mesh = mesh_of({3});
    const auto d = rows(2, mesh);
    if (rank == 1) {
      rows(1, mesh);
    }
    EXPECT_EQ(
        error_of<c10::ValueError>([&] { full_tensor(d); }),
        "[from_local] ranks of \"a\" disagree about a tensor made without a "
        "global shape: ranks 0, 2 make no such tensor; rank 1 makes f64[3, 4] "
        "in S(0) from its f64[1, 4]. Pass the global shape to from_local on "
        "every rank.");
  });
}

TEST(UnevenFromLocal, IsFoundAfterManyTensors) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = mesh_of({2});
    for (int i = 0; i < 70; ++i) {
      rows(2, mesh);
    }
    const auto d = rows(2 + rank, mesh);
    EXPECT_EQ(
        error_of<c10::ValueError>([&] { full_tensor(d); }),
        "[from_local] ranks of \"a\" disagree about a tensor made without a "
        "global shape, after the first 64. Pass the global shape to "
        "from_local on every rank.");
  });
}

// On two mesh dimensions, the error occurs along the dimension with different
// rows.
TEST(UnevenFromLocal, OnAMeshOfTwoDimensions) {
  run_ranks(4, [](int64_t rank) {
    const auto mesh = mesh_of({2, 2});
    const auto count = 3 - rank % 2; // along "b"
    const auto d = DTensor::from_local(
        counting({count, 4}), mesh, {Replicate(), Shard(0)});
    get_group(mesh, "a").barrier(); // the ranks of "a" agree
    EXPECT_EQ(
        error_of<c10::ValueError>([&] { full_tensor(d); }),
        c10::str(
            "[from_local] ranks of \"b\" disagree about a tensor made without "
            "a global shape: rank ",
            rank / 2 * 2,
            " makes f64[6, 4] in R S(0) from its f64[3, 4]; rank ",
            rank / 2 * 2 + 1,
            " makes f64[4, 4] in R S(0) from its f64[2, 4]. Pass the global "
            "shape to from_local on every rank."));
  });
}

TEST(UnevenFromLocal, WithAShapeIsRight) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = mesh_of({2});
    const auto full = counting({5, 4});
    const auto d = DTensor::from_local(
        full.narrow(0, 3 * rank, 3 - rank),
        mesh,
        {Shard(0)},
        {.shape = std::vector<int64_t>{5, 4}});
    expect_same(full_tensor(d), full);
    expect_same(whole(d.mean()), full.mean());
  });
}

TEST(UnevenFromLocal, OfEqualShardsIsRightEveryTime) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    for (int i = 0; i < 200; ++i) {
      const auto d = rows(2, mesh);
      if (i % 80 == 79) {
        expect_same(
            full_tensor(d), at::cat({counting({2, 4}), counting({2, 4})}));
      }
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
