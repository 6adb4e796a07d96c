// SPDX-License-Identifier: BSD-3-Clause
#include "fault.h"

#include <dtensor/dtensor.h>

#include <array>
#include <chrono>
#include <exception>
#include <numeric>
#include <vector>

namespace dtensor::faults {
namespace {

constexpr std::array<const char*, kKinds> kNames = {
    "throws",
    "returns",
    "calls a collective with another shape",
    "calls a collective with another dtype",
    "calls another collective",
    "uses a tensor of another rank",
    "uses a mesh of another rank",
    "uses a group of another rank",
    "uses a model of another rank",
    "uses a tensor of ended ranks",
    "uses a mesh of ended ranks",
    "uses a group of ended ranks",
    "uses a model of ended ranks"};

/// Exception that ends the rank's step. The rank then returns without an error.
struct Return : std::exception {};

void use_tensor(const at::Tensor& t) {
  (t * 2).sum();
}

void use_mesh(const DeviceMesh& mesh) {
  DTensor::from_local(torch::ones({2}), mesh, {Shard(0)});
}

void use_model(const Block& model) {
  Block(model)->forward(torch::ones({2, 6, 8}));
}

void commit(
    const Fault& fault,
    Group& group,
    const Objects& other,
    const Objects& ended) {
  switch (fault.kind) {
    case Kind::kThrows:
      throw std::runtime_error("the disk is full");
    case Kind::kReturns:
      throw Return();
    case Kind::kOtherShape:
      group.all_reduce(torch::ones({7, 5}), ReduceOp::kSum);
      return;
    case Kind::kOtherDtype:
      group.all_reduce(torch::ones({3}, at::kShort), ReduceOp::kSum);
      return;
    case Kind::kOtherCollective:
      group.gather(torch::ones({3}), 0);
      return;
    case Kind::kOtherRanksTensor:
      return use_tensor(other.tensor);
    case Kind::kOtherRanksMesh:
      return use_mesh(other.mesh);
    case Kind::kOtherRanksGroup:
      return other.group->barrier();
    case Kind::kOtherRanksModule:
      return use_model(other.model);
    case Kind::kEndedTensor:
      return use_tensor(ended.tensor);
    case Kind::kEndedMesh:
      return use_mesh(ended.mesh);
    case Kind::kEndedGroup:
      return ended.group->barrier();
    case Kind::kEndedModule:
      return use_model(ended.model);
  }
}

GroupPtr group_of_all() {
  std::vector<int64_t> ranks(static_cast<size_t>(get_world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return new_group(ranks, "all");
}

Objects objects_of_mine() {
  Objects mine;
  mine.mesh = init_device_mesh(at::kCPU, {get_world_size()}, {"tp"});
  mine.model = make_model(mine.mesh);
  mine.tensor = distribute_tensor(torch::ones({6, 2}), mine.mesh, {Shard(0)});
  mine.group = group_of_all();
  return mine;
}

} // namespace

std::string Fault::text() const {
  return c10::str(
      "rank ",
      rank,
      " of ",
      ranks,
      " ",
      kNames[static_cast<size_t>(kind)],
      " at point ",
      point);
}

Points count_points(int64_t ranks) {
  Points points;
  run_ranks(ranks, [&](int64_t rank) {
    const auto mine = objects_of_mine();
    PointCounter counter([](int64_t) {});
    const CommObserverGuard observing(counter);
    train(mine.model, mine.mesh, [&] { counter.pass(); });
    if (rank == 0) {
      points = counter.points();
    }
  });
  return points;
}

std::string run_with(const Fault& fault, const Objects& ended) {
  std::vector<Objects> all(static_cast<size_t>(fault.ranks));
  const auto one_rank = [&](int64_t rank) {
    auto& mine = all[static_cast<size_t>(rank)];
    mine = objects_of_mine();
    mine.group->barrier(); // now other ranks can see them
    const auto next = static_cast<size_t>((rank + 1) % fault.ranks);
    PointCounter counter([&](int64_t point) {
      if (rank == fault.rank && point == fault.point) {
        commit(fault, get_group(mine.mesh), all[next], ended);
      }
    });
    const CommObserverGuard observing(counter);
    try {
      train(mine.model, mine.mesh, [&] { counter.pass(); });
    } catch (const Return&) {
    }
  };
  try {
    run_ranks(fault.ranks, one_rank, {.timeout = std::chrono::seconds(20)});
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

bool names(const std::string& error, const Fault& fault) {
  const auto says = [&](const std::string& text) {
    return error.find(text) != std::string::npos;
  };
  const std::string at_fault = c10::str("rank ", fault.rank);
  switch (fault.kind) {
    case Kind::kThrows:
      return says(at_fault + ": the disk is full");
    case Kind::kReturns:
      return says("waits for " + at_fault + ", which has ended");
    case Kind::kOtherShape:
      return says("disagree: ") && says("all_reduce of f32[7, 5] with sum");
    case Kind::kOtherDtype:
      return says("disagree: ") && says("all_reduce of i16[3] with sum");
    case Kind::kOtherCollective:
      return says("disagree: ") && says("gather of f32[3] to rank 0");
    case Kind::kOtherRanksTensor:
    case Kind::kOtherRanksMesh:
    case Kind::kOtherRanksGroup:
    case Kind::kOtherRanksModule:
      return says(c10::str(
          " belongs to rank ",
          (fault.rank + 1) % fault.ranks,
          ", but this is ",
          at_fault,
          ". Build one model per rank"));
    default:
      return says(
          " belongs to rank 0 of a run_ranks that has ended, but this is " +
          at_fault);
  }
}

bool waited(const std::string& error) {
  return error.find("] timed out after ") != std::string::npos;
}

Objects of_ended_ranks() {
  Objects left;
  run_ranks(2, [&](int64_t rank) {
    auto mine = objects_of_mine();
    if (rank == 0) {
      left = std::move(mine);
    }
  });
  return left;
}

} // namespace dtensor::faults
