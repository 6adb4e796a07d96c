// SPDX-License-Identifier: BSD-3-Clause
// dtensor_second_derivatives: compares distributed Hessian-vector products of
// operators, redistributions, module styles and losses with plain ones.
//
//   dtensor_second_derivatives --seed 1 --cases 300     what ctest runs
//   dtensor_second_derivatives --op matmul --cases 50   one operator
//   dtensor_second_derivatives --kind styles            one kind of program
//   dtensor_second_derivatives --case 1000017           one that failed
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <tests/command_line.h>

#include <iostream>
#include <map>

#include "trial.h"

namespace dtensor::second_derivatives {
namespace {

struct Options {
  uint64_t seed = 1;
  int64_t cases = 300;
  std::string op;
  std::string kind;
  std::optional<uint64_t> one_case;
  bool verbose = false;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Hessian-vector products against plain tensors");
  app.add_option("--seed", options.seed, "Of the first case");
  app.add_option("--cases", options.cases, "How many");
  app.add_option("--op", options.op, "Of this operator only");
  app.add_option("--kind", options.kind, "operators, steps, styles, ... only");
  app.add_option("--case", options.one_case, "That one only");
  app.add_flag("--verbose", options.verbose, "Print each case");
  test::parse_or_exit(app, argc, argv);
  return options;
}

struct Case {
  Program program;
  std::vector<int64_t> mesh;
  bool twice = false;

  std::string text() const {
    std::string all = program.name;
    for (size_t i = 0; i < program.operands.size(); ++i) {
      const auto& t = program.operands[i];
      all += c10::str(
          " | ",
          short_name(t.scalar_type()),
          "[",
          c10::Join(", ", t.sizes()),
          "] ",
          to_string(PlacementsRef(program.layouts[i])));
    }
    return all + " | mesh (" + c10::Join(", ", mesh) + ")";
  }
};

std::string draw_kind(Random& random) {
  const auto kind = random.below(100);
  return kind < 45 ? "operators"
      : kind < 58  ? "steps"
      : kind < 72  ? "styles"
      : kind < 77  ? "torch_2_0"
      : kind < 89  ? "attention"
                   : "losses";
}

Case draw(const Options& options, uint64_t seed) {
  static const std::vector<std::vector<int64_t>> meshes = {
      {2}, {2}, {3}, {3}, {2, 2}};
  Random random(seed);
  Case c;
  c.mesh = random.one_of(meshes);
  c.twice = random.chance(25);
  auto kind = draw_kind(random);
  if (!options.op.empty() || !options.kind.empty()) {
    kind = options.op.empty() ? options.kind : "operators";
  }
  if (kind == "steps") {
    c.program = draw_steps(c.mesh, random);
  } else if (kind == "losses") {
    c.program = draw_loss(c.mesh, random);
  } else if (kind == "styles") {
    c.program = draw_style(c.mesh, random);
  } else if (kind == "torch_2_0") {
    c.mesh.resize(1);
    c.program = draw_torch_2_0(c.mesh, random);
  } else if (kind == "attention") {
    c.program = draw_attention(c.mesh, random);
  } else {
    TORCH_CHECK_VALUE(kind == "operators", "unknown kind ", kind);
    c.program =
        draw_operator(random.one_of(operators(options.op)), c.mesh, random);
  }
  return c;
}

struct Tally {
  int64_t equal = 0;
  int64_t refused = 0;
  int64_t skipped = 0;
  int64_t different = 0;
  std::map<std::string, int64_t> refused_by;

  // Adds a verdict. Returns true if the case counts as a combination.
  bool add(const Case& c, uint64_t seed, const Verdict& verdict, bool verbose) {
    switch (verdict.outcome) {
      case Outcome::kEqual:
        ++equal;
        return true;
      case Outcome::kRefused:
        ++refused;
        ++refused_by[verdict.where];
        break;
      case Outcome::kSkipped:
        ++skipped;
        break;
      case Outcome::kDifferent:
        ++different;
        break;
    }
    if (verbose || verdict.outcome == Outcome::kDifferent) {
      static const char* const names[] = {
          "equal", "refused", "skipped", "DIFFERENT"};
      std::cout << names[static_cast<size_t>(verdict.outcome)] << " "
                << c.text() << " | --case " << seed << ": " << verdict.why
                << std::endl;
    }
    return verdict.outcome != Outcome::kSkipped;
  }
};

int report(const Tally& tally) {
  std::string kinds;
  for (const auto& [where, count] : tally.refused_by) {
    kinds += c10::str(kinds.empty() ? "" : ", ", where, ": ", count);
  }
  std::cout << "second derivatives: "
            << tally.equal + tally.refused + tally.different
            << " combinations: " << tally.equal << " equal, " << tally.refused
            << " refused" << (kinds.empty() ? "" : " (" + kinds + ")") << ", "
            << tally.skipped << " skipped, " << tally.different << " different"
            << std::endl;
  return tally.different == 0 && tally.equal > 0 ? 0 : 1;
}

// Draws until enough cases are valid: many operators have no second derivative.
int run(const Options& options) {
  Tally tally;
  if (options.one_case) {
    const auto c = draw(options, *options.one_case);
    tally.add(
        c, *options.one_case, try_program(c.program, c.mesh, c.twice), true);
    return report(tally);
  }
  int64_t done = 0;
  for (uint64_t i = 0; done < options.cases; ++i) {
    const auto seed = options.seed * 1'000'000 + i;
    const auto c = draw(options, seed);
    const auto verdict = try_program(c.program, c.mesh, c.twice);
    done += tally.add(c, seed, verdict, options.verbose) ? 1 : 0;
    TORCH_CHECK(done > 0 || i < 1000, "nothing drawn has a second derivative");
  }
  return report(tally);
}

} // namespace
} // namespace dtensor::second_derivatives

int main(int argc, char** argv) {
  at::set_num_threads(1);
  // LibTorch's fused attention has no second derivative.
  at::globalContext().setSDPUseFlash(false);
  return dtensor::second_derivatives::run(
      dtensor::second_derivatives::parse(argc, argv));
}
