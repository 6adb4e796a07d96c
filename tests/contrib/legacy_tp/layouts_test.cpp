// SPDX-License-Identifier: BSD-3-Clause
// make_input_* and make_output_*: values, gradients and communication.
#include <dtensor/contrib/legacy_tp/torch_2_0.h>
#include <tests/comm/expect_error.h>
#include <tests/parallel/comm_counts.h>
#include <tests/parallel/modules.h>

#include <functional>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
using namespace dtensor::torch_2_0;

using Function = std::function<at::Tensor(const at::Tensor&)>;

struct Move {
  std::string what;
  Function function;
  Placement from;
  bool from_plain;
  Placement to;
  bool to_plain;
  std::string forward = "";
  std::string backward = "";
};

at::Tensor spread(
    const at::Tensor& whole,
    const DeviceMesh& mesh,
    const Placement& layout,
    bool plain) {
  return plain
      ? part(whole, mesh, layout)
      : distribute_tensor(whole.detach(), mesh, {layout}, std::nullopt);
}

// The function only moves elements, so the gradient of sum(y * weight) is
// weight.
void expect_moved(
    const Move& move,
    const at::Tensor& whole,
    const DeviceMesh& mesh) {
  const auto x =
      spread(whole, mesh, move.from, move.from_plain).requires_grad_(true);
  const auto weight = uniform(whole.sizes(), 99);
  const auto gradient = spread(weight, mesh, move.to, move.to_plain);
  const CommDebugMode comm;
  const auto y = move.function(x);
  y.backward(gradient);
  const bool alone = mesh.size() == 1;
  EXPECT_EQ(counts(comm, false), alone ? "" : move.forward) << move.what;
  EXPECT_EQ(counts(comm, true), alone ? "" : move.backward) << move.what;
  ASSERT_EQ(is_dtensor(y), !move.to_plain) << move.what;
  if (!move.to_plain) {
    EXPECT_EQ(layout_of(y), move.to) << move.what;
  }
  expect_close(
      y, move.to_plain ? part(whole, mesh, move.to) : whole, move.what);
  expect_close(
      x.grad(),
      move.from_plain ? part(weight, mesh, move.from) : weight,
      move.what + ": gradient");
}

void expect_all_moved(
    at::IntArrayRef sizes,
    const std::function<std::vector<Move>(const DeviceMesh&)>& moves) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const auto& move : moves(mesh)) {
        expect_moved(move, uniform(sizes, 7), mesh);
      }
    });
  }
}

constexpr bool kPlain = true;
constexpr bool kDTensor = false;

Function on(
    at::Tensor (*function)(const at::Tensor&, const DeviceMesh&),
    const DeviceMesh& mesh = {}) {
  return [=](const at::Tensor& t) { return function(t, mesh); };
}

TEST(Torch20LayoutsTest, PlainInputsBecomeDTensors) {
  expect_all_moved({6, 6}, [](const DeviceMesh& mesh) {
    return std::vector<Move>{
        {"replicate",
         on(make_input_replicate_1d, mesh),
         Replicate(),
         kPlain,
         Replicate(),
         kDTensor},
        {"reshard",
         on(make_input_reshard_replicate, mesh),
         Shard(0),
         kPlain,
         Replicate(),
         kDTensor,
         "1 all_gather"},
        {"shard",
         [mesh](const auto& t) { return make_input_shard_1d(t, mesh); },
         Shard(0),
         kPlain,
         Shard(0),
         kDTensor},
        {"shard 1",
         [mesh](const auto& t) { return make_input_shard_1d(t, mesh, 1); },
         Shard(1),
         kPlain,
         Shard(1),
         kDTensor},
        {"shard the last",
         on(make_input_shard_1d_last_dim, mesh),
         Shard(1),
         kPlain,
         Shard(1),
         kDTensor}};
  });
}

// 5 and 7 are divisible by neither 2 nor 3.
TEST(Torch20LayoutsTest, DTensorInputsAreRedistributed) {
  expect_all_moved({5, 7}, [](const DeviceMesh& mesh) {
    return std::vector<Move>{
        {"replicate",
         on(make_input_replicate_1d),
         Shard(1),
         kDTensor,
         Replicate(),
         kDTensor,
         "1 all_gather"},
        {"replicate a sum",
         on(make_input_replicate_1d, mesh),
         Partial(),
         kDTensor,
         Replicate(),
         kDTensor,
         "1 all_reduce"},
        {"reshard",
         on(make_input_reshard_replicate),
         Shard(1),
         kDTensor,
         Replicate(),
         kDTensor,
         "1 all_gather"},
        {"shard",
         [](const auto& t) { return make_input_shard_1d(t, {}, -2); },
         Shard(1),
         kDTensor,
         Shard(0),
         kDTensor,
         "1 all_to_all",
         "1 all_to_all"},
        {"shard the last",
         on(make_input_shard_1d_last_dim, mesh),
         Replicate(),
         kDTensor,
         Shard(1),
         kDTensor,
         "",
         "1 all_gather"}};
  });
}

TEST(Torch20LayoutsTest, OutputsAreRedistributed) {
  expect_all_moved({5, 7}, [](const DeviceMesh& mesh) {
    return std::vector<Move>{
        {"replicate",
         on(make_output_replicate_1d),
         Shard(1),
         kDTensor,
         Replicate(),
         kDTensor,
         "1 all_gather"},
        {"shard",
         [](const auto& t) { return make_output_shard_1d(t); },
         Partial(),
         kDTensor,
         Shard(0),
         kDTensor,
         "1 reduce_scatter",
         "1 all_gather"},
        {"shard 1",
         [mesh](const auto& t) { return make_output_shard_1d(t, mesh, 1); },
         Shard(0),
         kDTensor,
         Shard(1),
         kDTensor,
         "1 all_to_all",
         "1 all_to_all"},
        {"tensor",
         on(make_output_tensor, mesh),
         Partial(),
         kDTensor,
         Replicate(),
         kPlain,
         "1 all_reduce"},
        {"reshard",
         on(make_output_reshard_tensor),
         Partial(),
         kDTensor,
         Shard(0),
         kPlain,
         "1 reduce_scatter",
         "1 all_gather"},
        {"as it is",
         on(make_sharded_output_tensor, mesh),
         Shard(1),
         kDTensor,
         Shard(1),
         kPlain}};
  });
}

// Shards may be empty: two rows on three ranks.
TEST(Torch20LayoutsTest, LocalShardsMayBeEmpty) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    const auto whole = uniform({2, 4}, 7);
    const Move reshard{
        "reshard",
        on(make_output_reshard_tensor),
        Replicate(),
        kDTensor,
        Shard(0),
        kPlain,
        "",
        "1 all_gather"};
    expect_moved(reshard, whole, mesh);
  });
}

TEST(Torch20LayoutsTest, WrongInputsAreErrors) {
  run_ranks(2, [] {
    const auto tp = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto both = init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"});
    const auto x = torch::ones({2, 2});
    EXPECT_EQ(
        test::error_of([&] { make_input_replicate_1d(x); }),
        "[make_input_replicate_1d] the input is a plain tensor, and no mesh "
        "was passed. Pass a mesh.");
    EXPECT_EQ(
        test::error_of([&] { make_input_shard_1d({}, tp); }),
        "[make_input_shard_1d] the input is undefined. Pass a plain tensor or "
        "a DTensor.");
    EXPECT_EQ(
        test::error_of([&] { make_input_shard_1d_last_dim(x, both); }),
        "[make_input_shard_1d_last_dim] tensor parallelism runs along one "
        "mesh dimension, but the mesh is (dp=1, tp=2). Pass a slice, such as "
        "mesh[\"tp\"].");
    const at::Tensor on_both =
        DTensor::from_local(x, both, {Replicate(), Replicate()});
    EXPECT_EQ(
        test::error_of([&] { make_input_reshard_replicate(on_both); }),
        "[make_input_reshard_replicate] tensor parallelism runs along one "
        "mesh dimension, but the mesh is (dp=1, tp=2). Pass a slice, such as "
        "mesh[\"tp\"].");
    const auto other = init_device_mesh(at::kCPU, {2}, {"other"});
    EXPECT_EQ(
        test::error_of<c10::NotImplementedError>([&] {
          make_input_replicate_1d(make_input_replicate_1d(x, tp), other);
        }),
        "[redistribute] cannot go from mesh (tp=2) to another mesh, (other=2). "
        "Use full_tensor() and distribute_tensor.");
  });
}

TEST(Torch20LayoutsTest, WrongOutputsAreErrors) {
  run_ranks(2, [] {
    const auto tp = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto both = init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"});
    const auto x = torch::ones({2, 2});
    EXPECT_EQ(
        test::error_of<c10::TypeError>([&] { make_output_tensor(x, tp); }),
        "[make_output_tensor] the output is a plain tensor. Pass the DTensor "
        "that a parallel module made.");
    EXPECT_EQ(
        test::error_of<c10::TypeError>([&] { make_sharded_output_tensor({}); }),
        "[make_sharded_output_tensor] the output is undefined. Pass the "
        "DTensor that a parallel module made.");
    EXPECT_EQ(
        test::error_of<c10::ValueError>([&] {
          make_output_shard_1d(make_input_replicate_1d(x, tp), both);
        }),
        "[make_output_shard_1d] tensor parallelism runs along one mesh "
        "dimension, but the mesh is (dp=1, tp=2). Pass a slice, such as "
        "mesh[\"tp\"].");
    const auto other = init_device_mesh(at::kCPU, {2}, {"other"});
    EXPECT_EQ(
        test::error_of<c10::NotImplementedError>(
            [&] { make_output_tensor(make_input_replicate_1d(x, tp), other); }),
        "[redistribute] cannot go from mesh (tp=2) to another mesh, (other=2). "
        "Use full_tensor() and distribute_tensor.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
