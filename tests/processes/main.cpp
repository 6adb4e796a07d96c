// SPDX-License-Identifier: BSD-3-Clause
// Main program of a suite that runs as every rank of a world of processes:
//
//   dtensor-run -n 3 dtensor_process_tests --backend gloo
//   dtensor-run -n 2 dtensor_process_tests --backend cpu:shm,cuda:nccl --device
//   cuda
//
// All ranks run the same tests in the same order. With --device cuda, the ranks
// of one host use its GPUs in turn; NCCL needs one GPU per rank.
#include <ATen/Parallel.h>
#include <dtensor/comm/run_world.h>
#include <gtest/gtest.h>
#include <tests/comm/collective_inputs.h>
#include <tests/command_line.h>
#include <tests/gpu.h>
#include <tests/processes/on_ranks.h>
#include <tests/processes/two_hosts.h>

#include <cstdlib>
#include <iostream>

namespace {

dtensor::RunWorldOptions world_options;

// Returns why GPU tests cannot run here; "" if they can. The launcher provides
// the number of ranks on this host.
std::string why_no_gpu(const std::string& backend) {
  const int64_t gpus = dtensor::test::gpus();
  const char* ranks = std::getenv("LOCAL_WORLD_SIZE");
  if (gpus == 0) {
    return "no GPU";
  }
  const bool fits = ranks == nullptr || std::atoll(ranks) <= gpus;
  const bool is_nccl = backend.find("nccl") != std::string::npos;
  return fits || !is_nccl ? "" : "fewer GPUs than ranks";
}

} // namespace

// With several ranks per process, creates a world of thread ranks for each
// test.
void dtensor::test::on_ranks(const std::function<void()>& fn) {
  if (world_options.ranks_per_process > 1) {
    run_world(1, fn, world_options);
  } else {
    fn();
  }
}

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  auto& options = world_options.processes;
  options.timeout = std::chrono::minutes(1);
  CLI::App app("Tests of ranks that are processes");
  app.add_option("--backend", options.backend, "Backend of the collectives");
  app.add_option(
         "--ranks-per-process",
         world_options.ranks_per_process,
         "How many threads of each process are ranks")
      ->envname("DTENSOR_RANKS_PER_PROCESS");
  std::string device = "cpu";
  app.add_option("--device", device, "Where tensors lie");
  dtensor::test::parse_or_exit(app, argc, argv);
  if (device != "cpu") {
    if (const auto why = why_no_gpu(options.backend); !why.empty()) {
      std::cout << "skipped: " << why << std::endl;
      return 0;
    }
  }
  at::set_num_threads(1);
  dtensor::test::register_two_hosts();
  if (world_options.ranks_per_process > 1) {
    return RUN_ALL_TESTS();
  }
  dtensor::init_process_group(options);
  if (device != "cpu") {
    dtensor::test::test_device =
        dtensor::test::take_gpu(dtensor::get_node_local_rank());
  }
  const int result = RUN_ALL_TESTS();
  dtensor::destroy_process_group();
  return result;
}
