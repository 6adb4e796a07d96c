// SPDX-License-Identifier: BSD-3-Clause
#include "support.h"

#include <dtensor/tensor/memory_order_impl.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

TEST(DistributeTensor, ShardsTheDataOfTheFirstRank) {
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{5, 3}, {6, 4}, {1, 2}, {0, 2}}) {
    on_meshes({{1}, {2}, {3}, {2, 2}, {2, 3}}, [&](const DeviceMesh& mesh) {
      const auto full = counting(sizes);
      const auto mine = full * static_cast<double>(1 + get_rank());
      const auto ndim = static_cast<size_t>(mesh.ndim());
      for (const auto& p :
           {Replicate(),
            Shard(0),
            Shard(-1),
            StridedShard(0, 2),
            Partial(),
            Partial(ReduceOp::kAvg),
            Partial(ReduceOp::kMax)}) {
        const Placements layout(ndim, p);
        const auto d = distribute_tensor(mine, mesh, layout);
        EXPECT_EQ(to_local(d).sizes(), DTensor(d).spec()->local_sizes());
        EXPECT_TRUE(to_local(d).is_contiguous());
        expect_same(full_tensor(d), full);
      }
    });
  }
}

TEST(DistributeTensor, SourceCountsWithinEachMeshDimension) {
  run_ranks(4, [](int64_t rank) {
    const auto mesh = mesh_of({2, 2});
    const auto mine = at::full({4}, static_cast<double>(rank), at::kDouble);
    const auto d = distribute_tensor(mine, mesh, {Replicate(), Shard(0)}, 1);
    expect_same(full_tensor(d), at::full({4}, 3.0, at::kDouble));
  });
}

TEST(DistributeTensor, WithoutASourceEveryRankCutsItsOwn) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = mesh_of({2});
    const auto mine = at::full({4}, static_cast<double>(rank), at::kDouble);
    Counter counter;
    const auto d = distribute_tensor(mine, mesh, {Shard(0)}, std::nullopt);
    EXPECT_EQ(counter.take(), "");
    expect_same(to_local(d), mine.narrow(0, 0, 2));
    distribute_tensor(mine, mesh, {Shard(0)});
    EXPECT_EQ(counter.take(), "1 scatter");
    distribute_tensor(mine, mesh, {Replicate()});
    EXPECT_EQ(counter.take(), "1 broadcast");
    distribute_tensor(mine, mesh, {Partial()});
    EXPECT_EQ(counter.take(), "1 broadcast");
  });
}

TEST(DistributeTensor, IsALeafThatRequiresWhatTheTensorDid) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    auto leaf = counting({4}).requires_grad_();
    auto d = distribute_tensor(leaf, mesh, {Shard(0)});
    EXPECT_TRUE(d.is_leaf());
    EXPECT_TRUE(d.requires_grad());
    whole((d * 2).sum()).backward();
    EXPECT_FALSE(leaf.grad().defined());
    expect_same(whole(d.grad()), at::full({4}, 2.0, at::kDouble));
    EXPECT_FALSE(
        distribute_tensor(leaf.detach(), mesh, {Shard(0)}).requires_grad());
  });
}

TEST(DistributeTensor, SharesNoMemoryWithTheTensor) {
  on_meshes({{1}, {2}}, [](const DeviceMesh& mesh) {
    for (const auto& p : {Replicate(), Shard(0), Partial()}) {
      for (const auto& source : {std::optional<int64_t>(0), {}}) {
        auto full = counting({4});
        const auto d = distribute_tensor(full, mesh, {p}, source);
        full.zero_();
        expect_same(full_tensor(d), counting({4}));
      }
    }
  });
}

TEST(DistributeTensor, OfADTensorInThatLayoutIsItself) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const auto d = placed(counting({4}), mesh, {Shard(0)});
    EXPECT_TRUE(distribute_tensor(d, mesh, {Shard(-1)}).is_same(d));
  });
}

TEST(DistributeTensor, NumbersAndNonContiguousTensors) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const auto number = at::scalar_tensor(3.0, at::kDouble);
    expect_same(
        full_tensor(distribute_tensor(number, mesh, {Replicate()})), number);
    expect_same(
        full_tensor(distribute_tensor(number, mesh, {Partial()})), number);
    const auto turned = counting({4, 5}).t();
    for (const auto& source : {std::optional<int64_t>(0), {}}) {
      const auto d = distribute_tensor(turned, mesh, {Shard(0)}, source);
      expect_same(full_tensor(d), turned);
    }
  });
}

// The memory order of the full tensor is kept, as in Python.
TEST(DistributeTensor, KeepsTheOrderInMemory) {
  on_meshes({{1}, {2}, {3}}, [](const DeviceMesh& mesh) {
    const auto turned = counting({6, 8}).t(); // strides [1, 8]
    const auto images =
        counting({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
    for (const auto& full : {turned, images}) {
      for (const auto& p : {Replicate(), Shard(0), Shard(1), Partial()}) {
        for (const auto& source : {std::optional<int64_t>(0), {}}) {
          const auto d = distribute_tensor(full, mesh, {p}, source);
          EXPECT_EQ(d.strides(), full.strides());
          const auto part = to_local(d);
          EXPECT_TRUE(
              detail::in_memory_order(part, full.strides()).is_same(part));
          expect_same(full_tensor(d), full);
          EXPECT_EQ(full_tensor(d).strides(), full.strides());
        }
      }
    }
    const auto one = counting({1, 4}).expand({3, 4}); // overlaps itself
    const auto d = distribute_tensor(one, mesh, {Shard(0)});
    EXPECT_TRUE(d.is_contiguous());
    expect_same(full_tensor(d), one);
  });
}

TEST(DistributeTensor, MetaTensorsOnlyGetAShape) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    Counter counter;
    const auto d =
        distribute_tensor(at::empty({5, 2}, at::kMeta), mesh, {Shard(0)});
    EXPECT_EQ(counter.take(), "");
    EXPECT_TRUE(to_local(d).is_meta());
    EXPECT_EQ(to_local(d).sizes(), DTensor(d).spec()->local_sizes());
  });
}

TEST(DistributeTensor, EveryDtype) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    for (const auto dtype :
         {at::kBool,
          at::kByte,
          at::kLong,
          at::kHalf,
          at::kBFloat16,
          at::kComplexDouble}) {
      const auto full = counting({5}).to(dtype);
      expect_same(full_tensor(distribute_tensor(full, mesh, {Shard(0)})), full);
    }
  });
}

// LibTorch has fewer operators for these dtypes.
TEST(DistributeTensor, ShardsUnsignedNumbers) {
  for (const auto dtype : {at::kUInt16, at::kUInt32, at::kUInt64}) {
    const auto whole = at::arange(24, at::kLong).view({8, 3}).to(dtype);
    on_meshes({{2}, {3}}, [&](const DeviceMesh& mesh) {
      const auto cut = distribute_tensor(whole, mesh, {StridedShard(0, 2)});
      const auto back = full_tensor(cut);
      EXPECT_EQ(back.scalar_type(), dtype);
      EXPECT_TRUE(at::equal(back.to(at::kLong), whole.to(at::kLong)));
    });
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
