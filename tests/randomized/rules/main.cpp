// SPDX-License-Identifier: BSD-3-Clause
// dtensor_rules: proves sharding rules by brute force. See README.md beside
// this file.
//
//   dtensor_rules --samples FILE --reviewed unlisted.txt
//   dtensor_rules --samples FILE --reviewed unlisted.txt --op mm --calls 20
//   dtensor_rules --samples FILE --mutate
#include "mutation.h"
#include "proof.h"

#include "tests/randomized/harness/harness.h"
#include "tests/randomized/harness/operators.h"
#include "tests/randomized/op_samples/sample_file.h"

#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/ops/registry.h>

#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <regex>
#include <sstream>

namespace dtensor::randomized {
namespace {

struct Options {
  std::string samples;
  std::string reviewed;
  std::vector<std::string> ops; // empty: all
  bool mutate = false;
  ProofSettings settings;
};

// Returns the operators whose rule chooses among strategies.
std::vector<std::string> operators_of(const Options& options) {
  std::vector<std::string> all;
  for (const auto& name : drawable_operators(options.ops)) {
    const auto* rule = RuleRegistry::global().find(parse_operator_name(name));
    if (rule != nullptr && rule->dim_rule) {
      all.push_back(name);
    }
  }
  return all;
}

// Unlisted placements that are absent from the rules for a reason. Lines of the
// file are "operators | placements | reason"; the first two are regular
// expressions.
class Reviewed {
 public:
  explicit Reviewed(const std::string& path) {
    std::ifstream file(path);
    TORCH_CHECK_VALUE(file.good(), "cannot read ", path);
    for (std::string line; std::getline(file, line);) {
      const auto first = line.find(" | ");
      const auto second = line.find(" | ", first + 3);
      if (line.empty() || line[0] == '#') {
        continue;
      }
      TORCH_CHECK_VALUE(second != std::string::npos, path, ": ", line);
      lines_.emplace_back(
          std::regex(line.substr(0, first)),
          std::regex(line.substr(first + 3, second - first - 3)));
    }
  }
  bool contains(const std::string& op, const std::string& placements) const {
    return std::any_of(lines_.begin(), lines_.end(), [&](const auto& line) {
      return std::regex_match(op, line.first) &&
          std::regex_match(placements, line.second);
    });
  }

 private:
  std::vector<std::pair<std::regex, std::regex>> lines_;
};

// Sums over operators.
struct Sums {
  Tally kept;
  int64_t tried = 0;
  int64_t unlisted = 0;
  int64_t reviewed = 0;
};

// Proves one rule, and writes numbers and unlisted placements as lines.
void prove(
    const std::string& op,
    const std::vector<Call>& samples,
    const ProofSettings& settings,
    std::ostream& out) {
  const auto trials = telling_trials(op, samples, settings);
  const auto kept = try_kept(trials, settings);
  out << kept.equal << " " << kept.refused << " " << kept.different
      << std::endl;
  const auto unlisted = try_unlisted(trials, settings);
  out << unlisted.tried << "\n";
  for (const auto& [text, count] : unlisted.works) {
    out << text << " (" << count << ")\n";
  }
}

// Output of a child process to discard. Operands that do not fit cause LibTorch
// warnings.
enum class Discard { kNothing, kWarnings, kAll };

// Runs `write` in a child process, because LibTorch's operators may crash on
// shards that do not fit. Returns the written text, up to a crash.
std::string in_child(
    const std::function<void(std::ostream&)>& write,
    Discard discard) {
  const auto path = std::filesystem::temp_directory_path() /
      ("dtensor_rules." + std::to_string(getpid()));
  std::cout.flush();
  const auto child = fork();
  TORCH_CHECK(child >= 0, "fork failed");
  if (child == 0) {
    if (discard != Discard::kNothing) {
      TORCH_CHECK(std::freopen("/dev/null", "w", stderr) != nullptr);
    }
    if (discard == Discard::kAll) {
      TORCH_CHECK(std::freopen("/dev/null", "w", stdout) != nullptr);
    }
    std::ofstream file(path);
    try {
      write(file);
    } catch (const std::exception& e) {
      std::cout << e.what() << std::endl;
    }
    file.flush();
    std::cout.flush();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  return text.str();
}

// Adds the lines of prove() to the sums, and prints unlisted placements.
void add_lines(
    const std::string& op,
    const std::string& lines,
    const Reviewed& reviewed,
    Sums& sums) {
  std::istringstream text(lines);
  Tally kept;
  if (!(text >> kept.equal >> kept.refused >> kept.different)) {
    std::cout << "different " << op << ": crashed" << std::endl;
    ++sums.kept.different;
    return;
  }
  sums.kept.equal += kept.equal;
  sums.kept.refused += kept.refused;
  sums.kept.different += kept.different;
  int64_t tried = 0;
  if (!(text >> tried)) {
    std::cout << "crashed on shards that do not fit: " << op << std::endl;
    return;
  }
  sums.tried += tried;
  text.ignore();
  for (std::string line; std::getline(text, line);) {
    if (reviewed.contains(op, line.substr(0, line.rfind(" (")))) {
      ++sums.reviewed;
      continue;
    }
    std::cout << "unlisted " << op << ": " << line << std::endl;
    ++sums.unlisted;
  }
}

// Tries the layout of one strategy in a child process, with a mutation if it is
// not null. Throws if the mutation cannot be applied. A crash in a trial counts
// as a difference.
Tally try_strategy(
    const std::string& op,
    const std::vector<Trial>& trials,
    ProofSettings settings,
    const Strategy& strategy,
    const Mutation* mutation) {
  settings.only_layout = strategy.inputs;
  std::istringstream text(in_child(
      [&](std::ostream& out) {
        if (mutation != nullptr) {
          apply_mutation(op, *mutation);
        }
        out << "ready" << std::endl;
        const auto tally = try_kept(trials, settings);
        out << tally.equal << " " << tally.different;
      },
      settings.verbose ? Discard::kNothing : Discard::kAll));
  std::string ready;
  TORCH_CHECK(text >> ready, "cannot try a strategy of ", op);
  Tally tally;
  if (!(text >> tally.equal >> tally.different)) {
    tally.different = 1;
  }
  return tally;
}

// Mutations of one rule, or of all.
struct Mutations {
  int64_t detected = 0;
  int64_t survived = 0;
  int64_t untried = 0; // the rule itself refuses the calls
};

// Tries the mutations of a rule. Writes one line for each that the proof does
// not detect, and then the numbers.
void try_mutations(
    const std::string& op,
    const std::vector<Call>& samples,
    const ProofSettings& settings,
    std::ostream& out) {
  const auto trials = telling_trials(op, samples, settings);
  Mutations found;
  for (const auto& mutation : mutations_of(trials, settings)) {
    const auto tally_with = [&](const Mutation* applied) {
      return try_strategy(op, trials, settings, mutation.strategy, applied);
    };
    if (tally_with(&mutation).different > 0) {
      ++found.detected;
    } else if (tally_with(nullptr).equal == 0) {
      ++found.untried;
    } else {
      ++found.survived;
      out << mutation.text() << "\n";
    }
  }
  out << "total " << found.detected << " " << found.survived << " "
      << found.untried << std::endl;
}

// Checks that the proof detects each mutation.
void check_mutations(
    const std::vector<std::string>& operators,
    std::map<std::string, std::vector<Call>>& samples,
    const ProofSettings& settings,
    Harness& harness) {
  Mutations sums;
  for (const auto& op : operators) {
    std::istringstream lines(in_child(
        [&](std::ostream& out) {
          try_mutations(op, samples["aten::" + op], settings, out);
        },
        settings.verbose ? Discard::kNothing : Discard::kWarnings));
    std::string line;
    while (std::getline(lines, line) && !line.starts_with("total ")) {
      std::cout << "not detected " << op << ": " << line << std::endl;
    }
    Mutations found;
    std::istringstream total(line);
    std::string word;
    if (!(total >> word >> found.detected >> found.survived >> found.untried)) {
      std::cout << "crashed: " << op << std::endl;
      ++found.survived;
    }
    sums.detected += found.detected;
    sums.survived += found.survived;
    sums.untried += found.untried;
  }
  std::cout << operators.size() << " rules; " << sums.detected
            << " mutations detected, " << sums.survived << " not detected, "
            << sums.untried << " of strategies that refuse their calls\n";
  harness.tally().equal = sums.detected;
  harness.tally().different = sums.survived;
}

// Proves the rules.
void check_rules(
    const std::vector<std::string>& operators,
    std::map<std::string, std::vector<Call>>& samples,
    const Options& options,
    Harness& harness) {
  const Reviewed reviewed(options.reviewed);
  Sums sums;
  for (const auto& op : operators) {
    const auto& calls = samples["aten::" + op];
    const auto lines = in_child(
        [&](std::ostream& out) { prove(op, calls, options.settings, out); },
        harness.verbose() ? Discard::kNothing : Discard::kWarnings);
    add_lines(op, lines, reviewed, sums);
  }
  std::cout << operators.size() << " rules; " << sums.tried
            << " layouts tried on shards: " << sums.reviewed
            << " work and are left out for a reason, " << sums.unlisted
            << " without a reason\n";
  harness.tally() = sums.kept;
  harness.tally().different += sums.unlisted;
}

int run(int argc, char** argv) {
  Options options;
  Harness harness("rules", "Sharding rules, by brute force", 0);
  auto& app = harness.app();
  app.add_option("--samples", options.samples, "File of PyTorch's samples");
  auto* task = app.add_option_group("task")->require_option(1);
  task->add_option(
      "--reviewed",
      options.reviewed,
      "Prove the rules. A file of placements left out, and why");
  task->add_flag(
      "--mutate",
      options.mutate,
      "Check that the proof detects a wrong placement in each strategy");
  app.add_option("--op", options.ops, "These operators only");
  app.add_option("--calls", options.settings.calls, "Calls of each source");
  app.add_option(
      "--combinations", options.settings.combinations, "Layouts of each call");
  harness.parse(argc, argv);
  options.settings.verbose = harness.verbose();
  std::map<std::string, std::vector<Call>> samples;
  if (std::filesystem::exists(options.samples)) {
    samples = calls_of(read_samples(options.samples));
  }
  const auto operators = operators_of(options);
  // Every child process inherits the kernels that the first rank registers.
  detail::intercept_random_ops(false);
  if (options.mutate) {
    check_mutations(operators, samples, options.settings, harness);
  } else {
    check_rules(operators, samples, options, harness);
  }
  return harness.report();
}

} // namespace
} // namespace dtensor::randomized

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return dtensor::randomized::run(argc, argv);
}
