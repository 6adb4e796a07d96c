// SPDX-License-Identifier: BSD-3-Clause
// A rank for saving_faults_test.cpp. In one mode, it saves one checkpoint after
// another in the folder DTENSOR_TEST_SAVES, and is killed DTENSOR_TEST_DELAY
// microseconds after a save has begun. In the other mode it trains, and as rank
// 0 evaluates or saves alone. Prints the error that it gets and exits with 7.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <dtensor/checkpoint/async_saver.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/run_world.h>
#include <dtensor/tensor/dtensor.h>
#include <tests/command_line.h>
#include <tests/processes/rank_zero_alone.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

namespace {

constexpr int kRounds = 20;

struct Options {
  std::string fault;
  int64_t culprit = 1;
  int round = 3;
  dtensor::RunWorldOptions world;
};

std::chrono::microseconds delay() {
  const char* const text = std::getenv("DTENSOR_TEST_DELAY");
  return std::chrono::microseconds(text == nullptr ? 0 : std::atoi(text));
}

// Saves in rounds. The culprit is killed while its thread writes, or has just
// written.
void save(const Options& options, const std::string& folder) {
  const auto mesh =
      dtensor::init_device_mesh(at::kCPU, {dtensor::get_world_size()});
  dtensor::AsyncSaver saver;
  for (int round = 0; round < kRounds; ++round) {
    const auto whole = at::full({300'000}, static_cast<double>(round));
    dtensor::StateDict tensors;
    tensors.insert(
        "w", dtensor::distribute_tensor(whole, mesh, {dtensor::Shard(0)}));
    saver.save(
        folder + "/step_" + std::to_string(round),
        {.tensors = &tensors},
        {.full = round % 2 == 1});
    if (round == options.round && dtensor::get_rank() == options.culprit) {
      std::this_thread::sleep_for(delay());
      std::raise(SIGKILL);
    }
    saver.wait();
  }
}

} // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("A rank that is killed while it saves");
  app.add_option("--fault", options.fault, "kill, or evaluate or save alone");
  app.add_option("--culprit", options.culprit, "The rank that is killed");
  app.add_option("--round", options.round, "When");
  app.add_option("--backend", options.world.processes.backend, "By name");
  app.add_option(
      "--ranks-per-process",
      options.world.ranks_per_process,
      "Threads that are ranks");
  dtensor::test::parse_or_exit(app, argc, argv);
  options.world.processes.timeout = std::chrono::seconds(30);
  at::set_num_threads(1);
  const char* const folder = std::getenv("DTENSOR_TEST_SAVES");
  try {
    TORCH_CHECK(folder != nullptr, "DTENSOR_TEST_SAVES is not set");
    dtensor::run_world(
        1,
        [&] {
          if (options.fault == "kill") {
            save(options, folder);
          } else {
            dtensor::test::train_with_rank_zero_alone(
                options.fault, options.round, std::string(folder) + "/alone");
          }
        },
        options.world);
  } catch (const c10::Error& error) {
    std::cout << error.what_without_backtrace() << std::endl;
    return 7;
  }
  return 0;
}
