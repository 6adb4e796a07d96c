// SPDX-License-Identifier: BSD-3-Clause
// dtensor_process_faults: in each run, one rank of several processes fails at
// one of ten points of a training step. All others must end in time with an
// error that names it. Nothing may be left: no process, no socket, no shared
// memory, no file.
//
//   dtensor_process_faults --backend gloo --runs 7
//   dtensor_process_faults --backend shm --threads 2 --processes 2 --runs 70
//   dtensor_process_faults --backend mpi --launcher "mpirun.mpich" --runs 70
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/backends.h>
#include <tests/command_line.h>
#include <tests/processes/two_hosts.h>

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <map>

#include "job.h"
#include "leftovers.h"
#include "rank.h"

namespace dtensor::process_faults {
namespace {

namespace fs = std::filesystem;

struct Options {
  World world;
  int64_t first = 0;
  int64_t runs = 70;
  uint64_t seed = 1;
  bool verbose = false;
  bool inside = false;
  // True in a process that a launcher has started.
  bool as_rank = false;
  int kind = 0;
  Case fault;
};

struct Tally {
  int64_t named = 0;
  int64_t wrong = 0;
  int64_t left = 0;
  double longest_s = 0; // from a fault to the other ranks' end

  bool is_clean() const {
    return wrong + left == 0;
  }
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

double seconds_after(const Outcome& outcome, const Ended& ended) {
  return std::chrono::duration<double>(ended.when - outcome.fault_at).count();
}

// Returns the problem with the end of this process, or an empty text.
std::string wrong_with(
    const Options& options,
    const Case& fault,
    const Outcome& outcome,
    size_t process) {
  const Ended& ended = outcome.processes[process];
  const World& world = options.world;
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
  if (seconds_after(outcome, ended) > patience) {
    return c10::str("an end after ", seconds_after(outcome, ended), " s");
  }
  const auto missing = missing_in(ended.output, world, fault);
  return missing.empty() ? "" : missing + " is not in what it says";
}

// Prints the problem with a run, if any.
bool is_right(
    const Options& options,
    const Case& fault,
    const Outcome& outcome,
    Tally& tally) {
  bool right = !outcome.hung;
  std::string text = outcome.hung ? "  ranks hung\n" : "";
  for (size_t i = 0; i < outcome.processes.size(); ++i) {
    const auto wrong = wrong_with(options, fault, outcome, i);
    const auto& ended = outcome.processes[i];
    if (!wrong.empty() || outcome.hung || options.verbose) {
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
    right = right && wrong.empty();
    if (is_other(i, options.world, fault)) {
      tally.longest_s =
          std::max(tally.longest_s, seconds_after(outcome, ended));
    }
  }
  if (!text.empty()) {
    std::cout << fault.text() << ":\n" << text << std::endl;
  }
  return right;
}

bool nothing_left(
    const Options& options,
    const std::string& what,
    const fs::path& folder) {
  auto left = leftovers(options.inside);
  const auto files = clear_folder(folder);
  left.insert(left.end(), files.begin(), files.end());
  for (const auto& one : left) {
    std::cout << what << " left " << one << std::endl;
  }
  return left.empty();
}

// Runs without a fault. All processes must succeed, and report the number of
// points.
int64_t count_points(
    const Options& options,
    const fs::path& folder,
    const std::string& program) {
  const auto outcome = run_job(options.world, Case{}, folder, program);
  for (const auto& ended : outcome.processes) {
    TORCH_CHECK(
        ended.code == 0, "a run without a fault failed: ", ended.output);
  }
  const auto& output = outcome.processes[0].output;
  const auto begin = output.find(kPoints);
  TORCH_CHECK(begin != std::string::npos, "no points: ", output);
  TORCH_CHECK(
      nothing_left(options, "A run without a fault", folder), "Not even that.");
  return std::atoll(output.c_str() + begin + std::string(kPoints).size());
}

Tally run(const Options& options, const fs::path& folder) {
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  const int64_t points = count_points(options, folder, program);
  Tally tally;
  for (int64_t i = options.first; i < options.first + options.runs; ++i) {
    const Case fault = make_case(options.world, i, options.seed, points);
    const auto outcome = run_job(options.world, fault, folder, program);
    ++(is_right(options, fault, outcome, tally) ? tally.named : tally.wrong);
    tally.left += nothing_left(options, fault.text(), folder) ? 0 : 1;
  }
  return tally;
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Processes that train, and one of them does wrong");
  app.add_option("--backend", options.world.backend, "What carries tensors");
  app.add_option("--processes", options.world.processes, "How many");
  app.add_option("--threads", options.world.threads, "Ranks in each of them");
  app.add_option("--launcher", options.world.launcher, "mpirun, and options");
  app.add_option("--first", options.first, "Number of the first run");
  app.add_option("--runs", options.runs, "How many; 70 are all kinds");
  app.add_option("--seed", options.seed, "Of who does wrong");
  app.add_flag("--verbose", options.verbose, "Print what ranks say");
  app.add_flag("--inside", options.inside, "In namespaces of its own");
  app.add_flag("--as-rank", options.as_rank, "A process of a launcher");
  app.add_option("--kind", options.kind, "What it does");
  app.add_option("--culprit", options.fault.culprit, "Who does it");
  app.add_option("--place", options.fault.place, "Where");
  app.add_option("--point", options.fault.point, "Which that is");
  app.add_flag("--compares", options.fault.compares, "Whether ranks do");
  test::parse_or_exit(app, argc, argv);
  options.fault.kind = static_cast<Kind>(options.kind);
  return options;
}

fs::path make_folder() {
  std::string name = (fs::temp_directory_path() / "dtensor_faults_XXXXXX");
  TORCH_CHECK(mkdtemp(name.data()) != nullptr, "no temporary folder");
  // Other libraries create their files there too.
  setenv("TMPDIR", name.c_str(), /*overwrite=*/1);
  return name;
}

int run_all(const Options& options) {
  const fs::path folder = make_folder();
  const Tally tally = run(options, folder);
  fs::remove_all(folder);
  std::cout << "process faults over " << options.world.backend << " ("
            << options.world.processes << " x " << options.world.threads
            << " ranks): " << options.runs << " runs: " << tally.named
            << " named in time, " << tally.wrong << " wrong, " << tally.left
            << " left something behind"
            << (options.inside ? "" : " (processes and files: no namespaces)")
            << "; the longest took " << tally.longest_s << " s" << std::endl;
  return tally.is_clean() ? 0 : 1;
}

} // namespace
} // namespace dtensor::process_faults

int main(int argc, char** argv) {
  using namespace dtensor::process_faults;
  const Options options = parse(argc, argv);
  dtensor::test::register_two_hosts();
  if (options.as_rank) {
    return run_rank(options.world, options.fault);
  }
  if (!options.inside) {
    enter_namespaces(argc, argv);
  } else {
    furnish();
  }
  adopt_orphans();
  return run_all(options);
}
