// SPDX-License-Identifier: BSD-3-Clause
// dtensor_process_faults: in each run, one rank of several processes fails at
// one of ten points of a training step. All other ranks must end in time with
// an error that names the failed rank. No process, socket, shared memory or
// file may remain.
//
//   dtensor_process_faults --backend gloo --seed 0 --cases 7
//   dtensor_process_faults --backend shm --threads 2 --processes 2 --cases 70
//   dtensor_process_faults --backend mpi --launcher "mpirun.mpich" --cases 70
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/backends.h>
#include <tests/processes/two_hosts.h>
#include <tests/randomized/harness/harness.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "job.h"
#include "leftovers.h"
#include "rank.h"

namespace dtensor::process_faults {
namespace {

namespace fs = std::filesystem;

struct Options {
  World world;
  // True in a process that a launcher has started.
  bool as_rank = false;
  int kind = 0;
  Case fault;
};

// True for a process without the failing rank, and for a launcher.
bool is_other(size_t process, const World& world, const Case& fault) {
  return !world.launcher.empty() ||
      static_cast<int64_t>(process) != fault.culprit / world.threads;
}

// True if the failing rank's process ended as expected. It may crash in exit(),
// which destroys objects that its other threads may be using.
bool ends_as_expected(
    const Ended& culprit,
    const World& world,
    const Case& fault) {
  switch (fault.kind) {
    case Kind::kExits:
      return culprit.code == kExited ||
          (world.threads > 1 && culprit.code > 128);
    case Kind::kKilled:
    case Kind::kHangs:
      return culprit.code == 128 + SIGKILL;
    case Kind::kCrashes:
      return culprit.code == 128 + SIGSEGV;
    default:
      return culprit.code == kFailed;
  }
}

double seconds_after(const JobResult& result, const Ended& ended) {
  return std::chrono::duration<double>(ended.when - result.fault_at).count();
}

// Returns the problem with the end of this process, or an empty text.
std::string wrong_with(
    const World& world,
    const Case& fault,
    const JobResult& result,
    size_t process) {
  const Ended& ended = result.processes[process];
  if (!is_other(process, world, fault)) {
    return ends_as_expected(ended, world, fault) ? ""
                                                 : "another end of the culprit";
  }
  const bool has_failed =
      world.launcher.empty() ? ended.code == kFailed : ended.code != 0;
  if (!has_failed) {
    return "no error";
  }
  const double patience =
      std::chrono::duration<double>(fault.patience()).count();
  if (seconds_after(result, ended) > patience) {
    return c10::str("an end after ", seconds_after(result, ended), " s");
  }
  const auto missing = missing_in(ended.output, world, fault);
  return missing.empty() ? "" : missing + " is not in what it says";
}

// Returns the problems with a run, with the output of the processes that have
// problems.
std::string
problems_of(const World& world, const Case& fault, const JobResult& result) {
  std::string text = result.hung ? "ranks hung\n" : "";
  for (size_t i = 0; i < result.processes.size(); ++i) {
    const auto wrong = wrong_with(world, fault, result, i);
    const auto& ended = result.processes[i];
    if (!wrong.empty() || result.hung) {
      text += c10::str(
          "  process ",
          i,
          ", code ",
          ended.code,
          ": ",
          wrong,
          "\n",
          ended.output);
    }
  }
  return text;
}

void print_outputs(const JobResult& result) {
  for (size_t i = 0; i < result.processes.size(); ++i) {
    std::cout << "  process " << i << ":\n"
              << result.processes[i].output << std::endl;
  }
}

// Returns the time from the fault to the end of the last of the other ranks.
double
longest_end(const World& world, const Case& fault, const JobResult& result) {
  double longest_s = 0;
  for (size_t i = 0; i < result.processes.size(); ++i) {
    if (is_other(i, world, fault)) {
      longest_s =
          std::max(longest_s, seconds_after(result, result.processes[i]));
    }
  }
  return longest_s;
}

std::string text_of_leftovers(const fs::path& folder) {
  auto left = leftovers(is_inside());
  const auto files = clear_folder(folder);
  left.insert(left.end(), files.begin(), files.end());
  std::string text;
  for (const auto& one : left) {
    text += "  left " + one + "\n";
  }
  return text;
}

// Runs without a fault. All processes must succeed, and report the number of
// points.
int64_t count_points(
    const World& world,
    const fs::path& folder,
    const std::string& program) {
  const auto result = run_job(world, Case{}, folder, program);
  for (const auto& ended : result.processes) {
    TORCH_CHECK(
        ended.code == 0, "a run without a fault failed: ", ended.output);
  }
  const auto& output = result.processes[0].output;
  const auto begin = output.find(kPoints);
  TORCH_CHECK(begin != std::string::npos, "no points: ", output);
  const auto left = text_of_leftovers(folder);
  TORCH_CHECK(left.empty(), "a run without a fault ", left);
  return std::atoll(output.c_str() + begin + std::string(kPoints).size());
}

void add_options(CLI::App& app, Options& options) {
  auto& world = options.world;
  app.add_option("--backend", world.backend, "Backend of the collectives");
  app.add_option("--processes", world.processes, "Number of processes");
  app.add_option("--threads", world.threads, "Ranks per process");
  app.add_option("--launcher", world.launcher, "mpirun, and its options");
  app.add_flag("--as-rank", options.as_rank, "Be a process of a launcher");
  app.add_option("--kind", options.kind, "Fault of a launched process");
  app.add_option("--culprit", options.fault.culprit, "Rank that fails");
  app.add_option("--place", options.fault.place, "Place of the fault");
  app.add_option("--point", options.fault.point, "Its number among points");
  app.add_flag("--compares", options.fault.compares, "Compare the calls");
}

fs::path make_folder() {
  std::string name = (fs::temp_directory_path() / "dtensor_faults_XXXXXX");
  TORCH_CHECK(mkdtemp(name.data()) != nullptr, "no temporary folder");
  // Other libraries create their files there too.
  setenv("TMPDIR", name.c_str(), /*overwrite=*/1);
  return name;
}

int run_all(const World& world, randomized::Harness& harness) {
  const fs::path folder = make_folder();
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  const int64_t points = count_points(world, folder, program);
  double longest_s = 0;
  harness.run([&](uint64_t seed) {
    const Case fault = make_case(world, static_cast<int64_t>(seed), points);
    return randomized::Case{
        fault.text(), [&, fault] {
          const auto result = run_job(world, fault, folder, program);
          longest_s = std::max(longest_s, longest_end(world, fault, result));
          if (harness.verbose()) {
            print_outputs(result);
          }
          return randomized::Verdict::of_difference(
              problems_of(world, fault, result) + text_of_leftovers(folder));
        }};
  });
  fs::remove_all(folder);
  std::cout << "The longest end after a fault took " << longest_s << " s."
            << (is_inside() ? ""
                            : " Only processes and files were searched for "
                              "leftovers: no namespaces.")
            << std::endl;
  return harness.report();
}

int run(int argc, char** argv) {
  Options options;
  randomized::Harness harness(
      "process faults", "Training processes, one of which fails", 70);
  add_options(harness.app(), options);
  harness.parse(argc, argv);
  test::register_two_hosts();
  if (options.as_rank) {
    options.fault.kind = static_cast<Kind>(options.kind);
    return run_rank(options.world, options.fault);
  }
  if (is_inside()) {
    furnish();
  } else {
    enter_namespaces(argc, argv);
  }
  adopt_orphans();
  return run_all(options.world, harness);
}

} // namespace
} // namespace dtensor::process_faults

int main(int argc, char** argv) {
  return dtensor::process_faults::run(argc, argv);
}
