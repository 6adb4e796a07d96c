// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/spec.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>

#include <set>
#include <thread>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

using test_text::error_of;

// (dp=2, tp=4)
DeviceMesh mesh_2d(int64_t rank = 0) {
  return DeviceMesh(
      at::kCPU, {2, 4}, {0, 1, 2, 3, 4, 5, 6, 7}, {"dp", "tp"}, rank);
}

TEST(Spec, GivesItsProperties) {
  const SpecPtr spec = Spec::make(
      mesh_2d(6), {Shard(0), Partial("max")}, {8, 6}, {1, 8}, at::kHalf);
  EXPECT_EQ(spec->mesh(), mesh_2d(6));
  EXPECT_EQ(spec->placements(), (Placements{Shard(0), Partial("max")}));
  EXPECT_EQ(spec->sizes(), (Sizes{8, 6}));
  EXPECT_EQ(spec->strides(), (Sizes{1, 8}));
  EXPECT_EQ(spec->dtype(), at::kHalf);
  EXPECT_EQ(spec->dim(), 2);
  EXPECT_EQ(spec->numel(), 48);
  EXPECT_EQ(spec->local_sizes(), (Sizes{4, 6}));
}

TEST(Spec, StridesAreRowMajorUnlessGiven) {
  const SpecPtr spec =
      Spec::make(mesh_2d(), {Shard(0), Replicate()}, {8, 6}, at::kFloat);
  EXPECT_EQ(spec->strides(), (Sizes{6, 1}));
}

TEST(Spec, AReplicatedSpecIsReplicatedOnEveryMeshDimension) {
  const Placements whole{Replicate(), Replicate()};
  EXPECT_EQ(detail::replicated_placements(mesh_2d()), whole);
  const SpecPtr spec = Spec::make(
      mesh_2d(), {Shard(0), Partial("max")}, {8, 6}, {1, 8}, at::kHalf);
  EXPECT_EQ(detail::fully_replicated_spec(*spec), spec->with_placements(whole));
}

TEST(Spec, WithoutPartialKeepsAllOtherPlacements) {
  EXPECT_EQ(
      detail::without_partial({Partial("max"), Shard(1), Partial("sum")}),
      (Placements{Replicate(), Shard(1), Replicate()}));
  const Placements other{StridedShard(0, 4), Shard(0, 2), Replicate()};
  EXPECT_EQ(detail::without_partial(other), other);
}

struct Answers {
  Placements placements;
  bool is_replicated;
  bool has_partial;
  bool cuts_0;
  bool cuts_1;
};

TEST(Spec, PredicatesSayWhatALayoutIs) {
  const std::vector<Answers> table = {
      {{Replicate(), Replicate()}, true, false, false, false},
      {{Shard(0), Replicate()}, false, false, true, false},
      {{Replicate(), Shard(1)}, false, false, false, true},
      {{Shard(1), Shard(0)}, false, false, true, true},
      {{Shard(-1), Replicate()}, false, false, false, true},
      {{StridedShard(0, 4), Shard(0)}, false, false, true, false},
      {{Partial(), Replicate()}, false, true, false, false},
      {{Shard(1), Partial("min")}, false, true, false, true},
  };
  for (const Answers& row : table) {
    SCOPED_TRACE(to_string(PlacementsRef(row.placements)));
    const SpecPtr spec =
        Spec::make(mesh_2d(), row.placements, {8, 8}, at::kFloat);
    EXPECT_EQ(spec->is_replicated(), row.is_replicated);
    EXPECT_EQ(spec->has_partial(), row.has_partial);
    EXPECT_EQ(spec->is_sharded(0), row.cuts_0);
    EXPECT_EQ(spec->is_sharded(1), row.cuts_1);
  }
}

// Invariant: equal specs of one rank are the same object.
TEST(Spec, EqualSpecsAreOneObject) {
  const Placements placements{Shard(0), Replicate()};
  const SpecPtr spec = Spec::make(mesh_2d(), placements, {8, 6}, at::kFloat);
  EXPECT_EQ(spec, Spec::make(mesh_2d(), placements, {8, 6}, at::kFloat));
  EXPECT_EQ(spec, spec->with_placements(placements));
  EXPECT_EQ(spec, spec->with_placements({Shard(-2), Replicate()}));
  EXPECT_EQ(spec, spec->with_placements({StridedShard(0, 1), Replicate()}));
  EXPECT_EQ(spec, spec->with_placements({Shard(0, 4), Replicate()}));
  EXPECT_EQ(
      spec->with_placements({Replicate(), Shard(1, 4)}),
      spec->with_placements({Replicate(), StridedShard(-1, 1, 4)}));
  EXPECT_EQ(spec, spec->with_dtype(at::kHalf)->with_dtype(at::kFloat));
  EXPECT_EQ(
      spec,
      spec->with_tensor({Replicate(), Replicate()}, {2}, {1})
          ->with_tensor(placements, {8, 6}, {6, 1}));
}

// Invariant: specs that differ in any field are different objects.
TEST(Spec, DifferentSpecsAreDifferentObjects) {
  const Placements placements{Shard(0), Replicate()};
  const SpecPtr spec = Spec::make(mesh_2d(), placements, {8, 6}, at::kFloat);
  const std::vector<SpecPtr> all = {
      spec,
      Spec::make(mesh_2d(1), placements, {8, 6}, at::kFloat),
      spec->with_placements({Replicate(), Shard(0)}),
      spec->with_placements({StridedShard(0, 2), Replicate()}),
      spec->with_dtype(at::kDouble),
      Spec::make(mesh_2d(), placements, {6, 8}, at::kFloat),
      Spec::make(mesh_2d(), placements, {8, 6}, {1, 8}, at::kFloat),
      Spec::make(mesh_2d(), placements, {8, 6, 1}, at::kFloat),
  };
  const std::set<SpecPtr> different(all.begin(), all.end());
  EXPECT_EQ(different.size(), all.size());
}

TEST(Spec, LocalSizesFollowTorchChunk) {
  const Placements placements{Shard(0), Shard(0)};
  // 7 rows are sharded into 4 and 3, then over 4 ranks into 1 1 1 1 and 1 1 1
  // 0.
  for (int64_t rank = 0; rank < 8; ++rank) {
    const SpecPtr spec =
        Spec::make(mesh_2d(rank), placements, {7, 5}, at::kFloat);
    EXPECT_EQ(spec->local_sizes(), (Sizes{rank == 7 ? 0 : 1, 5}));
  }
}

TEST(Spec, ARankOutsideTheMeshHoldsNothing) {
  const DeviceMesh mesh(at::kCPU, {2}, {1, 2}, {"tp"}, 0);
  EXPECT_EQ(
      Spec::make(mesh, {Replicate()}, {8, 6}, at::kFloat)->local_sizes(),
      Sizes{0});
}

// Invariant: an id is never reused.
TEST(Spec, IdsAreNeverUsedAgain) {
  std::set<uint64_t> ids;
  // The number of specs is large enough that each spec is freed before its
  // shape recurs.
  for (int64_t i = 0; i < 4'000; ++i) {
    const SpecPtr spec =
        Spec::make(mesh_2d(), {Shard(0), Replicate()}, {i % 2'000}, at::kFloat);
    ids.insert(spec->id());
    EXPECT_EQ(spec->id(), spec->with_placements(spec->placements())->id());
  }
  EXPECT_GT(ids.size(), 2'000);
}

TEST(Spec, TheTableDoesNotGrowOverChangingShapes) {
  const size_t before = live_specs();
  std::thread([before] {
    for (int64_t n = 0; n < 10'000; ++n) {
      const SpecPtr spec =
          Spec::make(mesh_2d(), {Shard(0), Replicate()}, {n, 3}, at::kFloat);
      ASSERT_LE(live_specs(), before + 513);
    }
  }).join();
  EXPECT_EQ(live_specs(), before);
}

// The spec of a dropped result is the same object in the next step.
TEST(Spec, ARecentSpecLivesOn) {
  const auto make = [] {
    return Spec::make(mesh_2d(), {Shard(0), Replicate()}, {77, 3}, at::kFloat)
        ->id();
  };
  const auto first = make();
  EXPECT_EQ(make(), first);
}

TEST(Spec, ASpecKeepsItsMeshAlive) {
  const SpecPtr spec =
      Spec::make(mesh_2d(), {Shard(0), Replicate()}, {8}, at::kFloat);
  EXPECT_EQ(spec->mesh().mesh_dim_names()[1], "tp");
  EXPECT_EQ(spec->mesh(), mesh_2d());
}

TEST(Spec, ThreadsShareEqualSpecs) {
  constexpr size_t kThreads = 8;
  const size_t before = live_specs();
  {
    std::vector<SpecPtr> kept(kThreads);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        for (int64_t n = 0; n < 2'000; ++n) {
          kept[i] = Spec::make(
              mesh_2d(), {Shard(0), Replicate()}, {n % 7, 3}, at::kFloat);
        }
        kept[i] = kept[i]->with_dtype(at::kDouble);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(std::set<SpecPtr>(kept.begin(), kept.end()).size(), 1);
  }
  EXPECT_EQ(live_specs(), before);
}

TEST(SpecErrors, NumberOfPlacements) {
  EXPECT_EQ(
      error_of<c10::ValueError>([] {
        Spec::make(mesh_2d(), {Shard(0)}, {8}, at::kFloat, "from_local");
      }),
      "[from_local] 1 placement for a mesh of 2 dimensions: [S(0)] on (dp=2, "
      "tp=4). Pass one placement per mesh dimension.");
}

TEST(SpecErrors, ShardDimOutOfRange) {
  const auto error = [](const Placement& placement, SizesRef sizes) {
    return error_of<c10::IndexError>([&] {
      Spec::make(mesh_2d(), {Replicate(), placement}, sizes, at::kFloat);
    });
  };
  EXPECT_EQ(
      error(Shard(2), {8, 6}),
      "[Spec] S(2) on mesh dim \"tp\" shards a dimension that the tensor does "
      "not have: its number of dimensions is 2. Use a dimension from -2 to 1.");
  EXPECT_EQ(
      error(StridedShard(-3, 2), {8, 6}),
      "[Spec] SS(-3, sf=2) on mesh dim \"tp\" shards a dimension that the "
      "tensor does not have: its number of dimensions is 2. Use a dimension "
      "from -2 to 1.");
  EXPECT_EQ(
      error(Shard(0), {}),
      "[Spec] S(0) on mesh dim \"tp\" shards a dimension that the tensor does "
      "not have: its number of dimensions is 0. Use R.");
}

TEST(SpecErrors, MixedPartials) {
  const auto make = [](std::string_view a, std::string_view b) {
    return Spec::make(mesh_2d(), {Partial(a), Partial(b)}, {8}, at::kFloat);
  };
  EXPECT_EQ(
      error_of<c10::ValueError>([&] { make("sum", "max"); }),
      "[Spec] a layout cannot mix Partial reductions: P(sum) P(max). Use one "
      "reduction, or Replicate, on all mesh dimensions.");
  EXPECT_EQ(
      error_of<c10::ValueError>([&] { make("max", "avg"); }),
      "[Spec] a layout cannot mix Partial reductions: P(max) P(avg). Use one "
      "reduction, or Replicate, on all mesh dimensions.");
  EXPECT_TRUE(make("sum", "avg")->has_partial());
  EXPECT_TRUE(make("avg", "sum")->has_partial());
  EXPECT_TRUE(make("max", "max")->has_partial());
}

TEST(SpecErrors, SizesAndStrides) {
  EXPECT_EQ(
      error_of<c10::ValueError>([] {
        Spec::make(
            mesh_2d(), {Replicate(), Replicate()}, {8, 6}, {1}, at::kFloat);
      }),
      "[Spec] 1 stride for 2 sizes: [1] for [8, 6]. Pass one stride per "
      "dimension.");
  EXPECT_EQ(
      error_of<c10::ValueError>([] {
        Spec::make(mesh_2d(), {Replicate(), Replicate()}, {-1}, at::kFloat);
      }),
      "[Spec] a size is negative: [-1]. Pass the global sizes of the tensor.");
}

TEST(SpecErrors, NoMesh) {
  EXPECT_EQ(
      error_of<c10::ValueError>(
          [] { Spec::make(DeviceMesh(), {Replicate()}, {8}, at::kFloat); }),
      "[Spec] the mesh is undefined: it was default-constructed. Make one with "
      "init_device_mesh.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
