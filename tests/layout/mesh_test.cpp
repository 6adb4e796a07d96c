// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/mesh_state_impl.h>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>

#include <thread>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

using detail::mesh_groups;
using detail::MeshGroups;
using test_text::error_of;

using List = std::vector<int64_t>;
using Names = std::vector<std::string>;

// Groups that only record how they were created.
struct FakeGroups : MeshGroups {
  FakeGroups(const void* world, std::string made_by)
      : world_(world),
        made_by_(std::move(made_by)) {}

  std::shared_ptr<MeshGroups> select(
      c10::ArrayRef<int64_t> dims) const override {
    return std::make_shared<FakeGroups>(world_, c10::str("select ", dims));
  }
  std::shared_ptr<MeshGroups> joined_with(
      const MeshGroups& others) const override {
    return std::make_shared<FakeGroups>(
        world_,
        made_by_ + ", " + dynamic_cast<const FakeGroups&>(others).made_by_);
  }
  std::shared_ptr<MeshGroups> make_for(
      const DeviceMesh& pure,
      c10::ArrayRef<int64_t> /*shape*/,
      const char* where) const override {
    return std::make_shared<FakeGroups>(
        world_,
        c10::str(
            where,
            " ",
            c10::IntArrayRef(pure.ranks()),
            " ",
            c10::Join(" ", pure.mesh_dim_names())));
  }
  const void* world() const override {
    return world_;
  }
  const std::string& choice() const override {
    return choice_;
  }

  const void* world_;
  std::string made_by_;
  std::string choice_;
};

const std::string& made_by(const DeviceMesh& mesh) {
  return dynamic_cast<const FakeGroups&>(*mesh_groups(mesh)).made_by_;
}

List iota(int64_t n) {
  List list;
  for (int64_t i = 0; i < n; ++i) {
    list.push_back(i);
  }
  return list;
}

// (pp=2, dp=3, tp=4) over ranks 0..23
DeviceMesh mesh_3d(int64_t rank, std::shared_ptr<MeshGroups> groups = nullptr) {
  const DeviceMesh pure(
      at::kCPU, {2, 3, 4}, iota(24), {"pp", "dp", "tp"}, rank);
  return groups ? detail::with_groups(pure, std::move(groups)) : pure;
}

TEST(DeviceMesh, GivesItsProperties) {
  const DeviceMesh mesh(at::kCPU, {2, 3}, {5, 4, 3, 2, 1, 0}, {"dp", "tp"}, 2);
  EXPECT_TRUE(mesh.defined());
  EXPECT_EQ(mesh.device_type(), at::kCPU);
  EXPECT_EQ(mesh.ndim(), 2);
  EXPECT_EQ(mesh.shape(), (List{2, 3}));
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.size(0), 2);
  EXPECT_EQ(mesh.size(-1), 3);
  EXPECT_EQ(mesh.size("tp"), 3);
  EXPECT_EQ(mesh.ranks(), (List{5, 4, 3, 2, 1, 0}));
  EXPECT_EQ(mesh.mesh_dim_names(), (Names{"dp", "tp"}));
  EXPECT_EQ(mesh.dim_of("tp"), 1);
  EXPECT_EQ(mesh.dim_label(1), "\"tp\"");
  EXPECT_EQ(mesh.get_rank(), 2);
  EXPECT_EQ(mesh.get_coordinate(), (List{1, 0}));
  EXPECT_EQ(mesh.get_local_rank(0), 1);
  EXPECT_EQ(mesh.get_local_rank("tp"), 0);
  EXPECT_EQ(mesh.get_local_rank(-2), 1);
  EXPECT_EQ(mesh_groups(mesh), nullptr);
}

TEST(DeviceMesh, DefaultIsNoMesh) {
  EXPECT_FALSE(DeviceMesh().defined());
  EXPECT_EQ(DeviceMesh(), DeviceMesh());
}

TEST(DeviceMesh, NamesMayBeLeftOut) {
  const DeviceMesh mesh(at::kCPU, {4}, iota(4), {}, 3);
  EXPECT_TRUE(mesh.mesh_dim_names().empty());
  EXPECT_EQ(mesh.dim_label(-1), "0");
  EXPECT_EQ(mesh.get_local_rank(), 3);
}

TEST(DeviceMesh, CoordinatesAreRowMajor) {
  const DeviceMesh mesh = mesh_3d(0);
  for (int64_t i = 0; i < mesh.size(); ++i) {
    const List expected{i / 12, i / 4 % 3, i % 4};
    EXPECT_EQ(mesh.coordinate_of(i), expected);
    EXPECT_EQ(mesh_3d(i).get_coordinate(), expected);
  }
}

TEST(DeviceMesh, ARankOutsideHasNoCoordinate) {
  const DeviceMesh mesh(at::kCPU, {2, 2}, {1, 2, 3, 4}, {"dp", "tp"}, 0);
  EXPECT_FALSE(mesh.contains_this_rank());
  EXPECT_EQ(mesh.get_coordinate(), std::nullopt);
  EXPECT_EQ(mesh["tp"].ranks(), (List{1, 2}));
  EXPECT_FALSE(mesh["tp"].contains_this_rank());
  EXPECT_FALSE(mesh.flatten().contains_this_rank());
  EXPECT_EQ(
      error_of<c10::Error>([&] { mesh.get_local_rank(0); }),
      "[DeviceMesh::get_local_rank] rank 0 is outside the mesh of ranks [1, 2, "
      "3, 4]. Check contains_this_rank() first.");
}

TEST(DeviceMesh, EqualMeshesAreOneObject) {
  const DeviceMesh mesh = mesh_3d(5);
  EXPECT_EQ(mesh, mesh_3d(5));
  EXPECT_EQ(mesh.identity(), mesh_3d(5).identity());
  const auto differ = [&](const DeviceMesh& other) {
    return !(mesh == other) && !(other == mesh) &&
        mesh.identity() != other.identity();
  };
  const List ranks = iota(24);
  List swapped = ranks;
  std::swap(swapped[0], swapped[1]);
  const Names names{"pp", "dp", "tp"};
  EXPECT_TRUE(differ(mesh_3d(6)));
  EXPECT_TRUE(differ(DeviceMesh(at::kCUDA, {2, 3, 4}, ranks, names, 5)));
  EXPECT_TRUE(differ(DeviceMesh(at::kCPU, {3, 2, 4}, ranks, names, 5)));
  EXPECT_TRUE(differ(DeviceMesh(at::kCPU, {2, 3, 4}, swapped, names, 5)));
  EXPECT_TRUE(differ(DeviceMesh(at::kCPU, {2, 3, 4}, ranks, {}, 5)));
  EXPECT_TRUE(
      differ(DeviceMesh(at::kCPU, {2, 3, 4}, ranks, {"a", "b", "c"}, 5)));
}

TEST(DeviceMesh, MeshesOfDifferentWorldsAreUnequal) {
  const int world_a = 0;
  const int world_b = 0;
  const auto groups = [](const int& world) {
    return std::make_shared<FakeGroups>(&world, "");
  };
  const DeviceMesh a = mesh_3d(0, groups(world_a));
  const DeviceMesh b = mesh_3d(0, groups(world_b));
  EXPECT_FALSE(a == b);
  EXPECT_FALSE(a == mesh_3d(0));
  EXPECT_FALSE(a["tp"] == b["tp"]);
  // Within a world the groups of the first mesh are kept.
  const DeviceMesh again = mesh_3d(0, groups(world_a));
  EXPECT_EQ(a, again);
  EXPECT_EQ(mesh_groups(a), mesh_groups(again));
}

TEST(DeviceMesh, GroupsDieWithTheLastHandle) {
  const int world = 0;
  std::weak_ptr<MeshGroups> root_groups;
  std::weak_ptr<MeshGroups> slice_groups;
  std::weak_ptr<MeshGroups> flat_groups;
  {
    const DeviceMesh mesh =
        mesh_3d(0, std::make_shared<FakeGroups>(&world, ""));
    const DeviceMesh slice = mesh[{"dp", "tp"}];
    const DeviceMesh flat = slice.flatten();
    root_groups = mesh_groups(mesh);
    slice_groups = mesh_groups(slice);
    flat_groups = mesh_groups(mesh["dp_tp"]);
    EXPECT_FALSE(flat_groups.expired());
  }
  EXPECT_TRUE(root_groups.expired());
  EXPECT_TRUE(slice_groups.expired());
  EXPECT_TRUE(flat_groups.expired());
}

// Slices agree with the definition, for every rank and every choice of names.
TEST(DeviceMesh, SlicesKeepTheRanksThroughThisOne) {
  const Names names{"pp", "dp", "tp"};
  for (int64_t rank = 0; rank < 24; ++rank) {
    const DeviceMesh mesh = mesh_3d(rank);
    for (unsigned mask = 1; mask < 8; ++mask) {
      Names kept;
      for (size_t d = 0; d < 3; ++d) {
        if (mask >> d & 1U) {
          kept.push_back(names[d]);
        }
      }
      List expected;
      for (int64_t other = 0; other < 24; ++other) {
        bool shares = true;
        for (size_t d = 0; d < 3; ++d) {
          shares = shares &&
              ((mask >> d & 1U) ||
               mesh.coordinate_of(other)[d] == mesh.coordinate_of(rank)[d]);
        }
        if (shares) {
          expected.push_back(other);
        }
      }
      const DeviceMesh slice = mesh.slice(kept);
      EXPECT_EQ(slice.ranks(), expected);
      EXPECT_EQ(slice.mesh_dim_names(), kept);
      EXPECT_EQ(slice.get_rank(), rank);
      for (const std::string& name : kept) {
        EXPECT_EQ(slice.size(name), mesh.size(name));
        EXPECT_EQ(slice.get_local_rank(name), mesh.get_local_rank(name));
        EXPECT_EQ(slice[name], mesh[name]);
      }
    }
  }
}

TEST(DeviceMesh, ASliceOfEverythingIsTheMesh) {
  const DeviceMesh mesh = mesh_3d(7);
  EXPECT_EQ((mesh[{"pp", "dp", "tp"}]), mesh);
  EXPECT_EQ((mesh[{"pp", "tp"}]["tp"]), mesh["tp"]);
}

TEST(DeviceMesh, SlicesByNumber) {
  const DeviceMesh mesh = mesh_3d(7);
  EXPECT_EQ(mesh[1], mesh["dp"]);
  EXPECT_EQ(mesh[-1], mesh["tp"]);
  const DeviceMesh unnamed(at::kCPU, {2, 3}, iota(6), {}, 4);
  EXPECT_EQ(unnamed[0].ranks(), (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(unnamed[1].ranks(), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(unnamed[1][0], unnamed[1]);
  EXPECT_EQ(
      error_of([&] { mesh[3]; }),
      "[DeviceMesh] no dimension 3: the mesh has 3. Use one from -3 to 2.");
}

TEST(DeviceMesh, SlicesTakeTheirGroupsAlong) {
  const int world = 0;
  const DeviceMesh mesh = mesh_3d(0, std::make_shared<FakeGroups>(&world, ""));
  EXPECT_EQ(made_by(mesh["dp"]), "select [1]");
  EXPECT_EQ(made_by(mesh[{"pp", "tp"}]), "select [0, 2]");
  EXPECT_EQ(made_by(mesh[{"pp", "tp"}]["tp"]), "select [1]");
  EXPECT_EQ(
      made_by(mesh[{"dp", "tp"}].flatten("x")),
      "DeviceMesh::flatten [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11] x");
  EXPECT_EQ(
      made_by(mesh["dp"].unflatten("dp", {3, 1}, {"a", "b"})),
      "DeviceMesh::unflatten [0, 4, 8] a b");
}

TEST(DeviceMesh, MeshesWithDifferentBackendsAreUnequal) {
  const int world = 0;
  const auto with_choice = [&](const std::string& choice) {
    auto groups = std::make_shared<FakeGroups>(&world, "");
    groups->choice_ = choice;
    return mesh_3d(0, std::move(groups));
  };
  const DeviceMesh plain = with_choice("");
  const DeviceMesh gloo = with_choice("gloo");
  EXPECT_NE(plain, gloo);
  EXPECT_EQ(gloo, with_choice("gloo"));
}

TEST(DeviceMesh, UnflattensADimension) {
  const DeviceMesh mesh = mesh_3d(13); // (1, 0, 1)
  const DeviceMesh apart = mesh.unflatten("tp", {2, 2}, {"cp", "tp"});
  EXPECT_EQ(apart.mesh_dim_names(), (Names{"pp", "dp", "cp", "tp"}));
  EXPECT_EQ(apart.shape(), (List{2, 3, 2, 2}));
  EXPECT_EQ(apart.ranks(), mesh.ranks());
  EXPECT_EQ(*apart.get_coordinate(), (List{1, 0, 0, 1}));
  EXPECT_EQ(apart["cp"].ranks(), (List{13, 15}));
  EXPECT_EQ(mesh.unflatten(-1, {4}, {"tp"}), mesh);
  const DeviceMesh unnamed(at::kCPU, {6}, iota(6));
  EXPECT_EQ(unnamed.unflatten(0, {2, 3}).shape(), (List{2, 3}));
}

TEST(DeviceMesh, ConcatenatesSlices) {
  const DeviceMesh mesh = mesh_3d(13);
  EXPECT_EQ(
      (DeviceMesh::concatenate({mesh["dp"], mesh["tp"]})),
      (mesh[{"dp", "tp"}]));
  const DeviceMesh turned = DeviceMesh::concatenate({mesh["tp"], mesh["pp"]});
  EXPECT_EQ(turned.mesh_dim_names(), (Names{"tp", "pp"}));
  EXPECT_EQ(turned.ranks(), (List{0, 12, 1, 13, 2, 14, 3, 15}));
  EXPECT_EQ(*turned.get_coordinate(), (List{1, 1}));
  const DeviceMesh joined = mesh[{"pp", "dp"}].flatten("all_dp");
  const DeviceMesh two = DeviceMesh::concatenate({joined, mesh["tp"]});
  EXPECT_EQ(two.shape(), (List{6, 4}));
  EXPECT_EQ(two.ranks(), mesh.ranks());
  EXPECT_EQ(DeviceMesh::concatenate({two["tp"]}), two["tp"]);
}

TEST(DeviceMesh, ConcatenatesSlicesOfARankOutside) {
  const DeviceMesh mesh(at::kCPU, {2, 2}, {1, 2, 3, 4}, {"a", "b"}, 0);
  const DeviceMesh both = DeviceMesh::concatenate({mesh["a"], mesh["b"]});
  EXPECT_EQ(both, mesh);
  EXPECT_FALSE(both.contains_this_rank());
}

TEST(DeviceMesh, FlattenedMeshesAreRemembered) {
  const DeviceMesh mesh = mesh_3d(13); // (1, 0, 1)
  const DeviceMesh flat = mesh[{"dp", "tp"}].flatten();
  EXPECT_EQ(flat.mesh_dim_names(), (Names{"dp_tp"}));
  EXPECT_EQ(flat.shape(), (List{12}));
  EXPECT_EQ(flat.get_local_rank(), 1);
  EXPECT_EQ(flat.ranks().front(), 12);
  EXPECT_EQ(mesh["dp_tp"], flat);
  EXPECT_EQ((mesh[{"dp", "tp"}].flatten()), flat);
  EXPECT_EQ(flat.flatten(), flat);
  EXPECT_EQ(mesh.flatten("all").ranks(), mesh.ranks());
  EXPECT_EQ(mesh["all"].size(), 24);
}

TEST(DeviceMesh, AFlattenedNameIsFoundFromEveryMeshItWasSlicedFrom) {
  const DeviceMesh mesh(
      at::kCPU, {2, 2, 2, 2}, iota(16), {"a", "b", "c", "d"}, 15);
  const DeviceMesh middle = mesh[{"b", "c", "d"}];
  const DeviceMesh flat = middle[{"c", "d"}].flatten("cd");
  EXPECT_EQ(middle["cd"], flat);
  EXPECT_EQ(mesh["cd"], flat);
  EXPECT_EQ(flat.ranks(), (List{12, 13, 14, 15}));
}

// (r=2, s=2, c=2, t=3) with s and c flattened.
DeviceMesh mesh_4d(int64_t rank) {
  DeviceMesh mesh(at::kCPU, {2, 2, 2, 3}, iota(24), {"r", "s", "c", "t"}, rank);
  mesh[{"s", "c"}].flatten("sc");
  return mesh;
}

// Expected ranks and errors are those of Python's DeviceMesh.
TEST(FlattenedSlice, CombinesWithDimensions) {
  const DeviceMesh first = mesh_4d(0);
  const DeviceMesh rows = first[{"r", "sc"}];
  EXPECT_EQ(rows.shape(), (List{2, 4}));
  EXPECT_EQ(rows.ranks(), (List{0, 3, 6, 9, 12, 15, 18, 21}));
  EXPECT_EQ(rows.mesh_dim_names(), (Names{"r", "sc"}));
  EXPECT_EQ((first[{"sc", "t"}].ranks()), iota(12));
  EXPECT_EQ((first[{"r", "sc", "t"}].ranks()), iota(24));
  EXPECT_EQ((first[{"r", "sc", "t"}].shape()), (List{2, 4, 3}));
  EXPECT_EQ(rows, (first[{"r", "sc"}]));

  const DeviceMesh last = mesh_4d(23);
  EXPECT_EQ((last[{"r", "sc"}].ranks()), (List{2, 5, 8, 11, 14, 17, 20, 23}));
  EXPECT_EQ(*(last[{"r", "sc"}].get_coordinate()), (List{1, 3}));
  EXPECT_EQ(last[{"sc"}].ranks(), (List{14, 17, 20, 23}));
}

TEST(FlattenedSlice, MayJoinDimensionsThatAreNotNeighbours) {
  const DeviceMesh mesh = mesh_4d(23);
  mesh[{"r", "c"}].flatten("rc");
  EXPECT_EQ(
      (mesh[{"rc", "t"}].ranks()),
      (List{6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23}));
  mesh[{"c", "t"}].flatten("ct");
  mesh[{"r", "s"}].flatten("rs");
  EXPECT_EQ((mesh[{"rs", "ct"}].ranks()), iota(24));
  EXPECT_EQ((mesh[{"rs", "ct"}]["ct"]), mesh["ct"]);
}

TEST(FlattenedSlice, IsFlattenedAndSlicedFurther) {
  const DeviceMesh mesh = mesh_4d(23);
  const DeviceMesh flat = mesh[{"r", "sc"}].flatten("rsc");
  EXPECT_EQ(flat.ranks(), (List{2, 5, 8, 11, 14, 17, 20, 23}));
  EXPECT_EQ((mesh[{"rsc", "t"}].ranks()), iota(24));
  const DeviceMesh three = mesh[{"r", "sc", "t"}];
  EXPECT_EQ((three[{"sc", "t"}].ranks().front()), 12);
  EXPECT_EQ((three[{"r", "sc"}].flatten("rsc")), flat);
  EXPECT_EQ((mesh[{"r", "sc"}].flatten().mesh_dim_names()), (Names{"r_sc"}));
  EXPECT_EQ((mesh[{"s", "c"}].flatten("sc")), mesh["sc"]);
}

TEST(FlattenedSlice, OfAnUnflattenedDimension) {
  const DeviceMesh mesh(at::kCPU, {2, 3, 4}, iota(24), {"a", "b", "c"}, 5);
  const DeviceMesh apart = mesh.unflatten("c", {2, 2}, {"x", "y"});
  apart[{"b", "x"}].flatten("bx");
  EXPECT_EQ(
      (mesh[{"a", "bx"}].ranks()),
      (List{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23}));
  EXPECT_EQ((apart[{"bx", "y"}].shape()), (List{6, 2}));
}

TEST(FlattenedSlice, OfDimensionsOfOneRank) {
  const DeviceMesh mesh(
      at::kCPU, {1, 6, 1, 4}, iota(24), {"a", "b", "c", "d"}, 5);
  mesh[{"c", "d"}].flatten("cd");
  mesh[{"b", "c"}].flatten("bc");
  mesh[{"a", "c"}].flatten("ac");
  EXPECT_EQ((mesh[{"b", "cd"}].ranks()), iota(24));
  EXPECT_EQ((mesh[{"bc", "d"}].ranks()), iota(24));
  EXPECT_EQ((mesh[{"ac", "d"}].ranks()), (List{4, 5, 6, 7}));
  EXPECT_EQ((mesh[{"ac", "d"}].shape()), (List{1, 4}));
  EXPECT_EQ((mesh[{"bc", "c"}].ranks()), (List{1, 5, 9, 13, 17, 21}));
  EXPECT_EQ((mesh[{"b", "ac"}].shape()), (List{6, 1}));
}

TEST(FlattenedSlice, OfARankOutsideGoesThroughTheFirstRank) {
  const DeviceMesh mesh(at::kCPU, {2, 2, 2}, iota(8), {"a", "b", "c"}, 9);
  mesh[{"b", "c"}].flatten("bc");
  EXPECT_EQ((mesh[{"a", "bc"}].ranks()), iota(8));
  EXPECT_FALSE((mesh[{"a", "bc"}].contains_this_rank()));
}

TEST(FlattenedSlice, TakesTheGroupsThatExist) {
  const int world = 0;
  const DeviceMesh mesh = mesh_3d(0, std::make_shared<FakeGroups>(&world, ""));
  mesh[{"dp", "tp"}].flatten("x");
  EXPECT_EQ(
      made_by(mesh[{"pp", "x"}]),
      "select [0], DeviceMesh::flatten [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11] "
      "x");
}

TEST(FlattenedSlice, KeepsTheOrderOfTheMesh) {
  const DeviceMesh mesh = mesh_4d(0);
  mesh[{"r", "c"}].flatten("rc");
  const auto refused = [&](const Names& names, const std::string& said) {
    EXPECT_EQ(
        error_of<c10::ValueError>([&] { mesh.slice(names); }),
        "[DeviceMesh] a slice must keep the order of the mesh dimensions: " +
            said + " of r, s, c, t. Name each dimension once, in that order.");
  };
  refused({"sc", "r"}, "sc (s, c), r");
  refused({"t", "sc"}, "t, sc (s, c)");
  refused({"s", "sc"}, "s, sc (s, c)");
  refused({"sc", "c"}, "sc (s, c), c");
  refused({"sc", "sc"}, "sc (s, c), sc (s, c)");
  refused({"rc", "s"}, "rc (r, c), s");
  refused({"s", "rc"}, "s, rc (r, c)");
  refused({"rc", "sc"}, "rc (r, c), sc (s, c)");
  EXPECT_EQ(
      error_of<c10::IndexError>([&] {
        mesh.slice({"x", "sc"});
      }),
      "[DeviceMesh] no dimension is called \"x\": the names are r, s, c, t, "
      "sc, rc. Use one of them.");
}

TEST(DeviceMesh, ThreadsShareEqualMeshes) {
  constexpr int kThreads = 8;
  const DeviceMesh mesh = mesh_3d(3);
  std::vector<const void*> slices(kThreads);
  std::vector<DeviceMesh> kept(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int repeat = 0; repeat < 200; ++repeat) {
        mesh_3d(3)[{"pp", "dp"}].flatten("flat");
        mesh_3d(repeat % 24)["tp"];
      }
      kept[static_cast<size_t>(i)] = mesh_3d(3)["tp"];
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const DeviceMesh& slice : kept) {
    EXPECT_EQ(slice, mesh["tp"]);
  }
}

using Ints = std::vector<int64_t>;

TEST(DeviceMeshErrors, MismatchedArguments) {
  const auto error = [](Ints shape, Ints ranks, Names names) {
    return error_of<c10::ValueError>(
        [&] { DeviceMesh(at::kCPU, shape, ranks, names); });
  };
  EXPECT_EQ(
      error({2, 2, 1}, iota(4), {"dp", "tp"}),
      "[DeviceMesh] 2 names for 3 dimensions: dp, tp. Pass one name per "
      "dimension.");
  EXPECT_EQ(
      error({2, 2}, iota(3), {}),
      "[DeviceMesh] 3 ranks for a mesh of shape [2, 2]. Pass 4 ranks, in "
      "row-major order.");
  EXPECT_EQ(
      error({}, {0}, {}),
      "[DeviceMesh] invalid mesh shape: []. Pass at least one dimension, and "
      "positive sizes.");
  EXPECT_EQ(
      error({2, 0}, {}, {}),
      "[DeviceMesh] invalid mesh shape: [2, 0]. Pass at least one dimension, "
      "and positive sizes.");
  EXPECT_EQ(
      error({2}, {1, 1}, {}),
      "[DeviceMesh] a rank occurs twice: 1. Pass different global ranks.");
  EXPECT_EQ(
      error({2}, {1, -1}, {}),
      "[DeviceMesh] a rank is negative: -1. Pass different global ranks.");
  EXPECT_EQ(
      error({1, 2}, iota(2), {"tp", "tp"}),
      "[DeviceMesh] two dimensions are called \"tp\": tp, tp. Give each its "
      "own name.");
  EXPECT_EQ(
      error({1, 2}, iota(2), {"tp", ""}),
      "[DeviceMesh] a dimension has an empty name: dimension 1. Name all "
      "dimensions or none.");
}

TEST(DeviceMeshErrors, UnknownDimensions) {
  const DeviceMesh mesh(at::kCPU, {2, 2}, iota(4), {"dp", "tp"});
  const DeviceMesh nameless(at::kCPU, {2, 2}, iota(4));
  const std::string unknown =
      "[DeviceMesh] no dimension is called \"tq\": the names are dp, tp. Use "
      "one of them.";
  EXPECT_EQ(error_of<c10::IndexError>([&] { mesh["tq"]; }), unknown);
  EXPECT_EQ(error_of<c10::IndexError>([&] { mesh.size("tq"); }), unknown);
  EXPECT_EQ(
      error_of<c10::IndexError>([&] { nameless["tp"]; }),
      "[DeviceMesh] no dimension is called \"tp\": the dimensions have no "
      "names. Pass names when making the mesh.");
  EXPECT_EQ(
      error_of<c10::IndexError>([&] { mesh.size(2); }),
      "[DeviceMesh] no dimension 2: the mesh has 2. Use one from -2 to 1.");
  EXPECT_EQ(
      error_of<c10::Error>([&] { mesh.get_local_rank(); }),
      "[DeviceMesh::get_local_rank] a dimension is required: the mesh has 2. "
      "Pass a dimension or its name.");
}

TEST(DeviceMeshErrors, SlicesOutOfOrder) {
  const DeviceMesh mesh = mesh_3d(0);
  EXPECT_EQ(
      error_of<c10::ValueError>([&] {
        mesh[{"tp", "dp"}];
      }),
      "[DeviceMesh] a slice must keep the order of the mesh dimensions: tp, dp "
      "of pp, dp, tp. Name each dimension once, in that order.");
  EXPECT_EQ(
      error_of<c10::ValueError>([&] {
        mesh[{"dp", "dp"}];
      }),
      "[DeviceMesh] a slice must keep the order of the mesh dimensions: dp, dp "
      "of pp, dp, tp. Name each dimension once, in that order.");
  EXPECT_EQ(
      error_of<c10::ValueError>([&] { mesh.slice({}); }),
      "[DeviceMesh] a slice needs a dimension. Name at least one.");
}

TEST(DeviceMeshErrors, FlattenedNamesThatAreTaken) {
  const DeviceMesh mesh = mesh_3d(0);
  const DeviceMesh slice = mesh[{"dp", "tp"}];
  EXPECT_EQ(
      error_of<c10::ValueError>([&] { slice.flatten("pp"); }),
      "[DeviceMesh::flatten] the name \"pp\" is taken by another mesh: the "
      "dimensions are pp, dp, tp. Choose another name.");
  slice.flatten("x");
  EXPECT_EQ(
      error_of<c10::ValueError>([&] {
        mesh[{"pp", "dp"}].flatten("x");
      }),
      "[DeviceMesh::flatten] the name \"x\" is taken by another mesh: the "
      "dimensions are pp, dp, tp. Choose another name.");
  EXPECT_EQ(
      error_of<c10::ValueError>([] {
        DeviceMesh(at::kCPU, {2, 2}, iota(4)).flatten();
      }),
      "[DeviceMesh::flatten] the mesh has no names to make one from. Pass a "
      "name.");
}

TEST(DeviceMeshErrors, InvalidUnflatten) {
  const DeviceMesh mesh = mesh_3d(0);
  EXPECT_EQ(
      error_of([&] {
        mesh.unflatten("tp", {3, 2}, {"a", "b"});
      }),
      "[DeviceMesh::unflatten] mesh dim \"tp\" has 4 ranks, which is not the "
      "product of the sizes [3, 2]. Pass sizes whose product is the number of "
      "ranks.");
  EXPECT_EQ(
      error_of([&] {
        mesh.unflatten("tp", {2, 2}, {"a"});
      }),
      "[DeviceMesh::unflatten] 1 name for 2 dimensions of a mesh with names. "
      "Pass one for each dimension if the mesh has names, otherwise none.");
  EXPECT_EQ(
      error_of([&] {
        mesh.unflatten("tp", {2, 2}, {"a", "dp"});
      }),
      "[DeviceMesh] two dimensions are called \"dp\": pp, dp, a, dp. Give each "
      "its own name.");
}

TEST(DeviceMeshErrors, InvalidConcatenate) {
  const DeviceMesh mesh = mesh_3d(0);
  EXPECT_EQ(
      error_of([&] { DeviceMesh::concatenate({}); }),
      "[DeviceMesh::concatenate] got no meshes. Pass at least one.");
  EXPECT_EQ(
      error_of([&] {
        DeviceMesh::concatenate({mesh["tp"], mesh[{"dp", "tp"}]});
      }),
      "[DeviceMesh::concatenate] two of the meshes share a dimension of the "
      "mesh that they come from. Name each dimension once.");
  const DeviceMesh other(at::kCPU, {2}, {30, 31}, {"x"}, 30);
  EXPECT_EQ(
      error_of([&] {
        DeviceMesh::concatenate({mesh["tp"], other});
      }),
      "[DeviceMesh::concatenate] the meshes are not slices of one mesh that "
      "still exists. Slice them from one mesh, and keep that mesh alive.");
  const DeviceMesh unnamed(at::kCPU, {2}, {0, 1}, {}, 0);
  EXPECT_EQ(
      error_of([&] {
        DeviceMesh::concatenate({mesh["tp"], unnamed});
      }),
      "[DeviceMesh::concatenate] only some of the meshes have names. Name the "
      "dimensions of all or none.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
