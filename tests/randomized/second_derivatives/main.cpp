// SPDX-License-Identifier: BSD-3-Clause
// dtensor_second_derivatives: compares distributed Hessian-vector products of
// operators, redistributions, module styles and losses with plain ones.
//
//   dtensor_second_derivatives --seed 1000000 --cases 250   what ctest runs
//   dtensor_second_derivatives --op matmul --cases 50         one operator
//   dtensor_second_derivatives --kind styles                  one kind
//   dtensor_second_derivatives --seed 1000017 --cases 1       one case again
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>
#include <dtensor/layout/text.h>
#include <tests/randomized/harness/harness.h>
#include <tests/randomized/harness/operators.h>

#include <map>

#include "trial.h"

namespace dtensor::second_derivatives {
namespace {

struct Options {
  std::vector<std::string> operators; // that may be drawn
  std::string kind;
};

std::string
text_of(const Program& program, const std::vector<int64_t>& mesh, bool twice) {
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
  return c10::str(
      all, " | mesh (", c10::Join(", ", mesh), ")", twice ? ", twice" : "");
}

std::string draw_kind(Random& random) {
  const auto kind = random.below(100);
  return kind < 45 ? "operators"
      : kind < 58  ? "steps"
      : kind < 72  ? "styles"
      : kind < 77  ? "torch_2_0"
      : kind < 89  ? "attention"
                   : "losses";
}

Program draw_program(
    const std::string& kind,
    const std::vector<int64_t>& mesh,
    const std::vector<std::string>& operators,
    Random& random) {
  if (kind == "operators") {
    return draw_operator(random.one_of(operators), mesh, random);
  }
  using Draw = Program (*)(const std::vector<int64_t>&, Random&);
  static const std::map<std::string, Draw> draws = {
      {"steps", draw_steps},
      {"losses", draw_loss},
      {"styles", draw_style},
      {"torch_2_0", draw_torch_2_0},
      {"attention", draw_attention}};
  return draws.at(kind)(mesh, random);
}

randomized::Case draw_case(const Options& options, uint64_t seed) {
  static const std::vector<std::vector<int64_t>> meshes = {
      {2}, {2}, {3}, {3}, {2, 2}};
  Random random(seed);
  auto mesh = random.one_of(meshes);
  const bool twice = random.chance(25);
  const auto drawn = draw_kind(random);
  const auto kind = options.kind.empty() ? drawn : options.kind;
  if (kind == "torch_2_0") {
    mesh.resize(1);
  }
  const auto program = draw_program(kind, mesh, options.operators, random);
  return {text_of(program, mesh, twice), [=] {
            return try_program(program, mesh, twice);
          }};
}

int run(int argc, char** argv) {
  randomized::Harness harness(
      "second derivatives",
      "Hessian-vector products against plain tensors",
      300);
  Options options;
  std::vector<std::string> only;
  harness.app().add_option("--op", only, "Of these operators only");
  harness.app()
      .add_option("--kind", options.kind, "Of this kind only")
      ->check(CLI::IsMember(
          {"operators",
           "steps",
           "styles",
           "torch_2_0",
           "attention",
           "losses"}));
  harness.parse(argc, argv);
  options.kind = only.empty() ? options.kind : "operators";
  options.operators = randomized::drawable_operators(only);
  harness.run([&](uint64_t seed) { return draw_case(options, seed); });
  return harness.report();
}

} // namespace
} // namespace dtensor::second_derivatives

int main(int argc, char** argv) {
  at::set_num_threads(1);
  // LibTorch's fused attention has no second derivative.
  at::globalContext().setSDPUseFlash(false);
  return dtensor::second_derivatives::run(argc, argv);
}
