// SPDX-License-Identifier: BSD-3-Clause
// Processes that are killed at any moment of a save leave the last complete
// checkpoint intact.
#include <dtensor/checkpoint/async_saver.h>
#include <dtensor/checkpoint/checkpoint_folder.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>
#include <thread>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using test_weights::Folder;

// Returns a state in which every number follows from the step.
StateDict state_of(const DeviceMesh& mesh, int64_t step) {
  StateDict state;
  for (const auto* name : {"a", "b", "c"}) {
    const auto whole =
        at::arange(3000, at::kDouble).view({100, 30}) + step * name[0];
    state.insert(
        name, distribute_tensor(whole, mesh, {Shard(0)}, std::nullopt));
  }
  state.insert("plain", at::full({7}, static_cast<double>(step)));
  return state;
}

std::string path_of(const std::string& folder, int64_t step) {
  return folder + "/step_" + std::to_string(step);
}

// Memory shared between a saving process and the process that forked it.
struct Told {
  std::atomic<int64_t> saved{0}; // last step on disk
};

// Saves one step after another until the process is killed.
[[noreturn]] void save_on(const std::string& folder, int64_t from, Told& told) {
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    AsyncSaver saver;
    for (int64_t step = from;; ++step) {
      auto state = state_of(mesh, step);
      CheckpointExtra extra = {{"step", step}};
      const CheckpointState all{.tensors = &state, .extra = &extra};
      if (step % 2 == 0) {
        save_checkpoint(path_of(folder, step), all);
      } else {
        saver.save(path_of(folder, step), all);
        saver.wait();
      }
      if (get_rank() == 0) {
        told.saved = step;
      }
      keep_last(folder, 2);
    }
  });
  std::_Exit(1);
}

// Exits with 0 if the last checkpoint is complete and not older than the last
// reported step.
[[noreturn]] void check(const std::string& folder, Told& told) {
  bool is_good = true;
  const auto last = latest_checkpoint(folder);
  if (!last) {
    std::_Exit(told.saved == 0 ? 0 : 2);
  }
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto state = state_of(mesh, 0);
    CheckpointExtra extra;
    load_checkpoint(*last, {.tensors = &state, .extra = &extra});
    const auto step = std::get<int64_t>(extra.at("step"));
    const auto truth = state_of(mesh, step);
    bool is_same = step >= told.saved && path_of(folder, step) == *last;
    for (const auto& item : truth) {
      is_same =
          is_same && at::equal(full(item.value()), full(state[item.key()]));
    }
    if (get_rank() == 0) {
      is_good = is_same;
      told.saved = step;
    }
  });
  std::_Exit(is_good ? 0 : 3);
}

template <class Fn>
pid_t forked(const Fn& fn) {
  const auto child = ::fork();
  if (child == 0) {
    try {
      fn();
    } catch (const std::exception& error) {
      std::cerr << error.what() << "\n";
    }
    std::_Exit(4);
  }
  return child;
}

// Only a process without threads may fork, so the tests below start this test
// in a process of its own.
TEST(KillsSavers, DISABLED_AtAnyMoment) {
  const char* const count = std::getenv("DTENSOR_TEST_KILLS");
  ASSERT_NE(count, nullptr);
  const Folder parent;
  const auto folder = parent / "run";
  std::filesystem::create_directory(folder);
  auto* const told = new (::mmap(
      nullptr,
      sizeof(Told),
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_ANONYMOUS,
      -1,
      0)) Told;
  std::mt19937 random(7);
  int64_t in_between = 0;
  const int kills = std::atoi(count);
  for (int i = 0; i < kills; ++i) {
    const int64_t before = told->saved;
    const auto saver = forked([&] { save_on(folder, before + 1, *told); });
    while (told->saved == before && ::waitpid(saver, nullptr, WNOHANG) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60000));
    ::kill(saver, SIGKILL);
    ::waitpid(saver, nullptr, 0);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      in_between += entry.path().extension() == ".saving";
    }
    const auto checker = forked([&] { check(folder, *told); });
    int status = 0;
    ::waitpid(checker, &status, 0);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "kill " << i << ": " << status;
    ASSERT_GT(told->saved, before);
  }
  std::cout << kills << " kills, " << in_between
            << " with a folder that was being written, last step "
            << told->saved << "\n";
  EXPECT_GT(in_between, kills / 10);
}

void kill_savers(int count) {
  const auto command = "DTENSOR_TEST_KILLS=" + std::to_string(count) + " " +
      std::filesystem::read_symlink("/proc/self/exe").string() +
      " --gtest_also_run_disabled_tests --gtest_filter=KillsSavers.*";
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(KilledSaver, LeavesTheLastCheckpoint) {
  kill_savers(20);
}

TEST(SlowKilledSaver, LeavesTheLastCheckpoint) {
  kill_savers(100);
}

} // namespace TEST_SOURCE
} // namespace dtensor
