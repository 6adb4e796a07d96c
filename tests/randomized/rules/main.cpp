// SPDX-License-Identifier: BSD-3-Clause
// dtensor_rules: proves sharding rules by brute force. See README.md beside
// this file.
//
//   dtensor_rules --samples FILE --reviewed unlisted.txt
//   dtensor_rules --samples FILE --reviewed unlisted.txt --op mm --calls 20
//   dtensor_rules --samples FILE --broken      breaks each strategy in turn
#include "broken.h"
#include "proof.h"

#include "tests/randomized/harness/harness.h"
#include "tests/randomized/harness/operators.h"
#include "tests/randomized/op_samples/sample_file.h"

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
  bool broken = false;
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

enum class Noticed { kYes, kNo, kNothingTried };

// Tries the layout of one strategy with a broken rule.
Noticed notices(
    const std::string& op,
    const std::vector<Trial>& trials,
    ProofSettings settings,
    const Break& change) {
  settings.only = change.strategy.inputs;
  const auto tally_of = [&](bool broken) {
    std::istringstream text(in_child(
        [&](std::ostream& out) {
          if (broken) {
            break_rule(op, change);
          }
          const auto tally = try_kept(trials, settings);
          out << tally.equal << " " << tally.different;
        },
        settings.verbose ? Discard::kNothing : Discard::kAll));
    Tally tally;
    tally.different = 1; // after a crash
    text >> tally.equal >> tally.different;
    return tally;
  };
  return tally_of(true).different > 0 ? Noticed::kYes
      : tally_of(false).equal > 0     ? Noticed::kNo
                                      : Noticed::kNothingTried;
}

// Breaks the strategies of a rule one at a time. Writes one line for each that
// the proof does not notice, and the number of the others.
void break_strategies(
    const std::string& op,
    const std::vector<Call>& samples,
    const ProofSettings& settings,
    std::ostream& out) {
  const auto trials = telling_trials(op, samples, settings);
  int64_t noticed = 0;
  for (const auto& change : breaks_of(trials, settings)) {
    const auto seen = notices(op, trials, settings, change);
    noticed += seen == Noticed::kYes ? 1 : 0;
    if (seen == Noticed::kNo) {
      out << change.text() << "\n";
    }
  }
  out << noticed << "\n";
}

// Checks that the proof notices each broken strategy.
void check_broken(
    const std::vector<std::string>& operators,
    std::map<std::string, std::vector<Call>>& samples,
    const ProofSettings& settings,
    Harness& harness) {
  int64_t noticed = 0;
  for (const auto& op : operators) {
    std::istringstream lines(in_child(
        [&](std::ostream& out) {
          break_strategies(op, samples["aten::" + op], settings, out);
        },
        settings.verbose ? Discard::kNothing : Discard::kWarnings));
    std::string line;
    while (std::getline(lines, line) && line.find("->") != std::string::npos) {
      std::cout << "not noticed " << op << ": " << line << std::endl;
      ++harness.tally().different;
    }
    if (line.empty()) {
      std::cout << "crashed: " << op << std::endl;
      ++harness.tally().different;
      continue;
    }
    noticed += std::stoll(line);
  }
  harness.tally().equal = noticed;
  std::cout << operators.size() << " rules; " << noticed
            << " broken strategies noticed, " << harness.tally().different
            << " not noticed\n";
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
  auto* reviewed = app.add_option(
      "--reviewed", options.reviewed, "File of placements left out, and why");
  app.add_flag(
         "--broken",
         options.broken,
         "Break strategies, and check that the proof notices")
      ->excludes(reviewed);
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
  if (options.broken) {
    check_broken(operators, samples, options.settings, harness);
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
