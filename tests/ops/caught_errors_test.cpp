// SPDX-License-Identifier: BSD-3-Clause
// A local operator may fail on one rank only, and the rank may catch the error.
// Its next collective must not be taken for one that the other ranks make in
// the operator: all ranks throw.
#include "same_or_error.h"

#include <dtensor/comm/group/operator_errors_impl.h>

namespace dtensor::testing {
namespace TEST_SOURCE {

using test_text::error_of;

constexpr const char* kAdvice =
    "Do not catch an error that other ranks do not have, because they go on "
    "with the operator.";

// Computes a value with an operator that fails on the last rank only.
using Use = std::function<at::Tensor(const DeviceMesh&)>;

// Lets the last rank of the mesh catch the error of `use`, and every other rank
// go on with the value. Returns the error of the next collective of all ranks.
std::string error_after(
    const Use& use,
    const std::vector<int64_t>& shape,
    const std::vector<std::string>& names) {
  const int64_t size = numel(shape);
  std::vector<int64_t> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::string> errors(all.size());
  run_ranks(size, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, shape, names);
    at::Tensor value;
    const std::string caught = error_of([&] { value = use(mesh); });
    EXPECT_EQ(value.defined(), rank != size - 1) << caught;
    auto& error = errors[static_cast<size_t>(rank)];
    error = error_of<c10::ValueError>([&] {
      value.defined() ? DTensor(value.sum()).full_tensor()
                      : new_group(all, c10::Join("_", names))
                            ->all_reduce(at::ones({}), ReduceOp::kSum);
    });
  });
  for (const auto& error : errors) {
    EXPECT_EQ(error, errors[0]);
  }
  return errors[0];
}

std::string error_on_two(const Use& use) {
  return error_after(use, {2}, {"tp"});
}

std::string text(const std::string& error) {
  return "[all_reduce] ranks of \"tp\" disagree about errors of operators: "
         "rank 0 reports none; rank 1 reports 1, the last: " +
      error + ". " + kAdvice;
}

// Row numbers of which only the last is out of range.
at::Tensor rows(const DeviceMesh& mesh) {
  return place(at::tensor({0, 1, 2, 9}), mesh, Shard(0));
}

at::Tensor table(const DeviceMesh& mesh) {
  return place(at::ones({3, 2}), mesh, Replicate());
}

TEST(CaughtErrors, OfLookups) {
  EXPECT_EQ(
      error_on_two([](const DeviceMesh& mesh) {
        return at::embedding(table(mesh), rows(mesh));
      }),
      text("index out of range in self"));
}

TEST(CaughtErrors, OfRecordedLookups) {
  EXPECT_EQ(
      error_on_two([](const DeviceMesh& mesh) {
        return at::embedding(table(mesh).requires_grad_(), rows(mesh)).detach();
      }),
      text("index out of range in self"));
}

TEST(CaughtErrors, OfDivisions) {
  EXPECT_EQ(
      error_on_two([](const DeviceMesh& mesh) {
        const auto x = place(at::ones({2}, at::kLong), mesh, Shard(0));
        return at::remainder(x, place(at::tensor({1, 0}), mesh, Shard(0)));
      }),
      text("ZeroDivisionError"));
}

// A kernel of DTensors calls operators on local tensors.
TEST(CaughtErrors, OfKernels) {
  EXPECT_EQ(
      error_on_two([](const DeviceMesh& mesh) {
        const auto std = place(at::tensor({0.5, -0.5}), mesh, Shard(0));
        return at::normal(place(at::zeros({2}), mesh, Shard(0)), std);
      }),
      text("[aten::normal.Tensor_Tensor] needs std >= 0, but an element is "
           "negative or NaN. Clamp std"));
}

// The error counts in all groups of the mesh.
TEST(CaughtErrors, OnAMeshOfTwoDimensions) {
  EXPECT_EQ(
      error_after(
          [](const DeviceMesh& mesh) {
            const auto ids = DTensor::from_local(
                at::full({1}, mesh.get_rank() == 3 ? 9 : 0, at::kLong),
                mesh,
                {Shard(0), Shard(0)},
                {.shape = {{4}}});
            const auto weight = DTensor::from_local(
                at::ones({3, 2}), mesh, {Replicate(), Replicate()});
            return at::embedding(weight, ids);
          },
          {2, 2},
          {"dp", "tp"}),
      c10::str(
          "[all_reduce] ranks of \"dp_tp\" disagree about errors of operators: "
          "ranks 0, 1, 2 report none; rank 3 reports 1, the last: index out of "
          "range in self. ",
          kAdvice));
}

// A collective within an operator throws on all ranks, so that its error does
// not count. Otherwise the ranks would have equal numbers of errors here: each
// is at another place of the program.
TEST(CaughtErrors, OfCollectivesDoNotCount) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto sharded = place(uniform({4, 2}, 1), mesh, Shard(0));
    if (rank == 1) {
      EXPECT_NE(error_of([&] { at::embedding(table(mesh), rows(mesh)); }), "");
    } else {
      at::embedding(table(mesh), rows(mesh));
    }
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(
          error_of<c10::ValueError>([&] {
            rank == 1 ? void(DTensor(sharded).full_tensor())
                      : void(sharded.argmax(0)); // gathers in its kernel
          }),
          "[all_gather] ranks of \"tp\" disagree about errors of operators: "
          "rank 0 reports none; rank 1 reports 1, the last: index out of range "
          "in self. " +
              std::string(kAdvice));
    }
  });
}

TEST(CaughtErrors, OfDisagreementsLeaveTheGroupUsable) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto x = place(uniform({4, 2}, 1), mesh, Shard(0));
    for (int i = 0; i < 3; ++i) {
      EXPECT_NE(
          error_of<c10::ValueError>([&] {
            rank == 1 ? get_group(mesh).barrier() : void(x.argmax(0));
          }).find("calls barrier"),
          std::string::npos);
      EXPECT_EQ(full(x).sizes(), (Sizes{4, 2}));
    }
  });
}

// A mesh without groups, as for planning.
TEST(CaughtErrors, OnAPureMeshDoNotCount) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    if (rank == 1) {
      const DeviceMesh pure(at::kCPU, {2}, {0, 1}, {"tp"}, rank);
      const auto x =
          DTensor::from_local(at::ones({2}, at::kLong), pure, {Replicate()});
      EXPECT_EQ(
          error_of([&] { x.remainder(at::zeros({}, at::kLong)); }),
          "ZeroDivisionError");
    }
    get_group(mesh).barrier();
  });
}

TEST(CaughtErrors, InAScopeDoNotCount) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    {
      const detail::ErrorsDoNotCount scope;
      const auto caught =
          error_of([&] { at::embedding(table(mesh), rows(mesh)); });
      EXPECT_EQ(
          caught,
          rank == 1 ? "index out of range in self" : "nothing was thrown");
    }
    get_group(mesh).barrier();
  });
}

TEST(CaughtErrors, OfAllRanksLeaveTheGroupUsable) {
  run_ranks(2, [](int64_t) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto wrong = place(at::tensor({7, 8, 9, 9}), mesh, Shard(0));
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(
          error_of([&] { at::embedding(table(mesh), wrong); }),
          "index out of range in self");
      const auto right = at::embedding(table(mesh), wrong - wrong);
      EXPECT_EQ(full(right.sum()).item<double>(), 8.0);
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
