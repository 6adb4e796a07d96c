// SPDX-License-Identifier: BSD-3-Clause
// CommDebugMode: recorded collectives and the modules they are attributed to.
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/parallel/nn_modules.h>
#include <dtensor/parallel/prepare_module.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

// module pass kind mesh_dim count payload wire
std::vector<std::string> lines(const CommDebugMode& comm) {
  std::vector<std::string> all;
  for (const auto& r : comm.records()) {
    all.push_back(c10::str(
        r.module.empty() ? "-" : r.module,
        r.backward ? " backward " : " forward ",
        to_string(r.kind),
        " ",
        r.mesh_dim,
        " ",
        r.count,
        " ",
        r.payload_bytes,
        " ",
        r.wire_bytes));
  }
  return all;
}

using Lines = std::vector<std::string>;

TEST(CommDebugModeTest, AttributesToModulesAndPasses) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mlp = filled(Mlp(4, 8));
    parallelize_module(*mlp, mesh, mlp_plan());
    CommDebugMode comm;
    for (int step = 0; step < 2; ++step) {
      mlp->zero_grad();
      // (3, 4) float64: 96 bytes.
      mlp(uniform({3, 4}, 3).requires_grad_(true)).sum().backward();
    }
    EXPECT_EQ(
        lines(comm),
        (Lines{
            "w2 forward all_reduce tp 2 192 192",
            "w1 backward all_reduce tp 2 192 192"}));
    EXPECT_EQ(comm.get_total_counts(), 4);
    EXPECT_EQ(
        comm.get_comm_counts(),
        (std::map<CollectiveKind, int64_t>{{CollectiveKind::kAllReduce, 4}}));
    EXPECT_EQ(comm.total({.module = "w1"}).count, 2);
    EXPECT_EQ(comm.total({.backward = false}).payload_bytes, 192);
    EXPECT_EQ(comm.total({.mesh_dim = "dp"}).count, 0);
    EXPECT_EQ(comm.total({.kind = CollectiveKind::kAllReduce}).count, 4);
    comm.reset();
    EXPECT_EQ(comm.get_total_counts(), 0);
    mlp(uniform({3, 4}, 3));
    EXPECT_EQ(comm.get_total_counts(), 1);
  });
}

TEST(CommDebugModeTest, AttributesToHooksAndGradients) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    torch::nn::Sequential model(
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})),
        hooked::Dropout(0.0));
    filled(model);
    parallelize_module(
        *model,
        mesh,
        {{"0", SequenceParallel()},
         {"1",
          PrepareModuleInput(
              {.input_layouts = {Shard(1)},
               .desired_input_layouts = {Replicate()}})}});
    const CommDebugMode comm;
    const auto y = model->forward(uniform({1, 2, 4}, 3));
    DTensor(y).to_local(Placements{Partial()}).sum().backward();
    EXPECT_EQ(
        lines(comm),
        (Lines{
            "1 forward all_gather tp 1 64 64",
            "1 backward reduce_scatter tp 1 128 64",
            "gradients backward all_reduce tp 1 64 64"}));
  });
}

TEST(CommDebugModeTest, WithoutModules) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const DTensor x(
        distribute_tensor(
            uniform({4, 4}, 3), mesh, {Shard(0), Shard(1)}, std::nullopt)
            .requires_grad_(true));
    const CommDebugMode comm;
    to_local(x.redistribute({Replicate(), Shard(1)})).sum().backward();
    EXPECT_EQ(lines(comm), (Lines{"- forward all_gather dp 1 32 32"}));
    const auto y = x.redistribute({Replicate(), Replicate()});
    EXPECT_EQ(comm.get_total_counts(), 2);
    EXPECT_EQ(comm.total({.mesh_dim = "dp"}).count, 1);
    EXPECT_EQ(comm.total({.mesh_dim = "dp_tp"}).count, 1);
  });
}

TEST(CommDebugModeTest, NestsAndEnds) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto& group = get_group(mesh, 0);
    const CommDebugMode outer;
    {
      const CommDebugMode inner;
      group.barrier();
      EXPECT_EQ(inner.get_total_counts(), 1);
    }
    group.barrier();
    EXPECT_EQ(outer.get_total_counts(), 2);
  });
  run_ranks(1, [] {
    const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
    const CommDebugMode comm;
    get_group(mesh, 0).all_reduce(at::ones({2}), ReduceOp::kSum);
    EXPECT_EQ(comm.get_total_counts(), 0);
  });
}

CommDebugMode& heard(CommDebugMode& comm) {
  for (const auto* module : {"layers.0.w2", "layers.0.w2", "a\"\\\n"}) {
    CollectiveEvent event;
    event.kind = CollectiveKind::kReduceScatter;
    event.payload_bytes = 1000;
    event.wire_bytes = 750;
    event.group_size = 4;
    event.label = "tp";
    event.module = module;
    event.backward = module[0] == 'a';
    comm.on_collective(event);
  }
  return comm;
}

TEST(CommDebugModeTest, PrintsATable) {
  CommDebugMode comm;
  EXPECT_EQ(
      comm.generate_comm_debug_tracing_table(),
      "module  pass  collective  mesh dim  count  bytes  sent\n"
      "total                                   0      0     0\n");
  CollectiveEvent event;
  event.kind = CollectiveKind::kAllGather;
  event.payload_bytes = 8;
  event.wire_bytes = 12.5;
  event.label = "tp";
  comm.on_collective(event);
  event.module = "layers.0.w2";
  event.backward = true;
  event.payload_bytes = 12345678;
  event.wire_bytes = 12345678;
  comm.on_collective(event);
  std::ostringstream printed;
  printed << comm;
  EXPECT_EQ(
      printed.str(),
      "module       pass      collective  mesh dim  count     bytes        "
      "sent\n"
      "-            forward   all_gather  tp            1         8        "
      "12.5\n"
      "layers.0.w2  backward  all_gather  tp            1  12345678    "
      "12345678\n"
      "total                                            2  12345686  "
      "12345690.5\n");
}

TEST(CommDebugModeTest, DumpsJson) {
  CommDebugMode comm;
  EXPECT_EQ(comm.generate_json_dump(), "[\n]\n");
  EXPECT_EQ(
      heard(comm).generate_json_dump(),
      "[\n"
      "  {\"module\":\"layers.0.w2\",\"pass\":\"forward\",\"kind\":"
      "\"reduce_scatter\",\"mesh_dim\":\"tp\",\"count\":2,"
      "\"payload_bytes\":2000,\"wire_bytes\":1500.0},\n"
      "  {\"module\":\"a\\\"\\\\\\n\",\"pass\":\"backward\",\"kind\":"
      "\"reduce_scatter\",\"mesh_dim\":\"tp\",\"count\":1,"
      "\"payload_bytes\":1000,\"wire_bytes\":750.0}\n"
      "]\n");
}

} // namespace TEST_SOURCE
} // namespace dtensor
