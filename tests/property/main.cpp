// SPDX-License-Identifier: BSD-3-Clause
// dtensor_property_tests: draws a mesh, shapes, layouts and an operator, and
// compares values and gradients with the plain operator. See trial.h.
//
//   dtensor_property_tests --seed 1 --cases 500       what ctest runs
//   dtensor_property_tests --op cumsum                one operator only
//   dtensor_property_tests --op view mm --heads       of heads, cut in units
//   dtensor_property_tests --case "add.Tensor | f64[4] on (2): S(0) | ..."
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <dtensor/ops/registry.h>
#include <tests/command_line.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "trial.h"

namespace dtensor::property {
namespace {

struct Options {
  uint64_t seed = 1;
  int64_t cases = 300;
  std::vector<std::string> ops; // empty: all
  std::string one_case;
  bool heads = false; // heads in all cases; else in a quarter of the cases
  bool verbose = false;
};

std::optional<c10::OperatorHandle> find(const std::string& op) {
  return c10::Dispatcher::singleton().findSchema(parse_operator_name(op));
}

// True if the results are a function of the arguments' values.
bool is_testable(const std::string& op) {
  static const std::set<std::string> without_values = {
      "empty_like",
      "new_empty",
      "new_empty_strided",
      "empty_strided",
      "record_stream",
      "_reshape_alias", // meaningless strides
      "is_same_size",
      "_debug_has_internal_overlap"};
  const auto handle = find(op);
  if (!handle || op.rfind("_foreach", 0) == 0 || op.rfind("_fused", 0) == 0) {
    return false;
  }
  const auto& schema = handle->schema();
  const auto base = schema.name().substr(6);
  return schema.name().rfind("aten::", 0) == 0 && !schema.arguments().empty() &&
      !handle->hasTag(at::Tag::nondeterministic_seeded) &&
      without_values.count(base) == 0 &&
      base.find("backward") == std::string::npos &&
      base.find("dropout") == std::string::npos;
}

// Returns every operator with a rule, and its in-place variant.
std::vector<std::string> operators(const std::vector<std::string>& only) {
  std::vector<std::string> all;
  const auto is_wanted = [&](const std::string& op) {
    const auto base = op.substr(0, op.find('.'));
    return only.empty() ||
        std::find(only.begin(), only.end(), base) != only.end();
  };
  for (const auto& registered : RuleRegistry::global().names()) {
    const auto name =
        registered.rfind("aten::", 0) == 0 ? registered.substr(6) : registered;
    const auto dot = std::min(name.find('.'), name.size());
    for (const auto& op :
         {name, name.substr(0, dot) + "_" + name.substr(dot)}) {
      if (is_wanted(op) && is_testable(op)) {
        all.push_back(op);
      }
    }
  }
  return all;
}

struct Tally {
  int64_t right = 0;
  int64_t refused = 0;
  int64_t malformed = 0;
  int64_t wrong = 0;
  std::map<std::string, int64_t> refused_by_op;
  std::set<std::string> tried;

  void add(const Case& c, const Verdict& verdict, bool verbose) {
    switch (verdict.outcome) {
      case Outcome::kRight:
        ++right;
        tried.insert(c.op);
        break;
      case Outcome::kRefused:
        ++refused;
        ++refused_by_op[c.op];
        if (verbose) {
          std::cout << "refused " << c.text() << "\n  " << verdict.why << "\n";
        }
        break;
      case Outcome::kMalformed:
        ++malformed;
        break;
      case Outcome::kWrong:
        ++wrong;
        std::cout << "WRONG " << c.text() << "\n  " << verdict.why << std::endl;
    }
  }
};

// Runs the cases. Malformed cases do not count: each operator in turn is tried
// until a case is valid, at most ten times.
Tally run(const Options& options) {
  static const std::vector<std::vector<int64_t>> meshes = {
      {1}, {2}, {2}, {3}, {4}, {5}, {2, 2}, {2, 2}, {2, 3}, {3, 2}};
  const auto all = operators(options.ops);
  Random random(options.seed);
  Tally tally;
  for (int64_t done = 0; done < options.cases && !all.empty(); ++done) {
    const auto& op = random.one_of(all);
    for (int tries = 0; tries < 10; ++tries) {
      const bool has_heads = options.heads || random.chance(25);
      const auto c = draw_case(op, random.one_of(meshes), has_heads, random);
      const auto verdict = try_case(c);
      tally.add(c, verdict, options.verbose);
      if (verdict.outcome != Outcome::kMalformed) {
        break;
      }
    }
  }
  return tally;
}

int report(const Tally& tally, const Options& options) {
  std::cout << "seed " << options.seed << ": " << tally.right << " right ("
            << tally.tried.size() << " operators), " << tally.refused
            << " refused, " << tally.wrong << " wrong; " << tally.malformed
            << " draws made no sense\nrefused:";
  for (const auto& [op, count] : tally.refused_by_op) {
    std::cout << " " << op << " " << count;
  }
  std::cout << "\n";
  return tally.wrong == 0 && tally.right > 0 ? 0 : 1;
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Random calls against plain tensors");
  app.add_option("--seed", options.seed, "Of the first case");
  app.add_option("--cases", options.cases, "How many");
  app.add_option("--op", options.ops, "Of these operators only");
  app.add_option(
      "--case", options.one_case, "That one only, as a report has it");
  app.add_flag("--heads", options.heads, "Features of heads of 64 only");
  app.add_flag("--verbose", options.verbose, "Print each case");
  test::parse_or_exit(app, argc, argv);
  return options;
}

int run_one(const std::string& text) {
  const auto verdict = try_case(Case::parse(text));
  static const char* const names[] = {"right", "refused", "malformed", "wrong"};
  std::cout << names[static_cast<size_t>(verdict.outcome)] << " " << verdict.why
            << "\n";
  return verdict.outcome == Outcome::kWrong ? 1 : 0;
}

} // namespace
} // namespace dtensor::property

int main(int argc, char** argv) {
  using namespace dtensor::property;
  at::set_num_threads(1);
  const auto options = parse(argc, argv);
  return options.one_case.empty() ? report(run(options), options)
                                  : run_one(options.one_case);
}
