// SPDX-License-Identifier: BSD-3-Clause
// Runs a program written by torch.export.save() on several ranks, and compares
// with one.
//
//   program model.pt2 --auto --ranks 4
//   program model.pt2 --plan plan.txt --inputs inputs.pt
//
// A plan has one line for each pattern of module names and its style; --auto
// finds a plan and prints it. Inputs are the sample inputs of the export, or a
// list of tensors that torch.save() wrote.
#include "../arguments.h"
#include "../check.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

namespace {

struct Options {
  std::string model;
  std::string plan;
  std::string inputs;
  bool find_plan = false;
  int64_t ranks = 2;
};

using Values = std::vector<c10::IValue>;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "cannot read ", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Values inputs_of(const Options& options, const dtensor::Program& program) {
  Values values;
  if (options.inputs.empty()) {
    for (const auto& input : program.sample_inputs()) {
      values.emplace_back(input);
    }
    return values;
  }
  const auto bytes = read(options.inputs);
  const auto saved = torch::pickle_load({bytes.begin(), bytes.end()});
  for (const auto& input : saved.toListRef()) {
    values.push_back(input);
  }
  return values;
}

std::vector<at::Tensor> full_outputs(const Values& outputs) {
  std::vector<at::Tensor> tensors;
  for (const auto& output : outputs) {
    if (output.isTensor()) {
      tensors.push_back(dtensor::full_tensor(output.toTensor()));
    }
  }
  return tensors;
}

// Returns the largest difference relative to the largest value.
double difference(
    const std::vector<at::Tensor>& ours,
    const std::vector<at::Tensor>& truth) {
  double largest = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    if (truth[i].numel() > 0) {
      const auto expected = truth[i].to(at::kDouble);
      const auto off = (ours.at(i).to(at::kDouble) - expected).abs().max();
      const auto scale = expected.abs().max().clamp_min(1e-300);
      largest = std::max(largest, (off / scale).item<double>());
    }
  }
  return largest;
}

std::vector<dtensor::PlanEntryText> plan_of(
    const Options& options,
    const dtensor::Program& program) {
  if (options.find_plan) {
    return dtensor::find_tp_plan(program);
  }
  return options.plan.empty() ? std::vector<dtensor::PlanEntryText>{}
                              : dtensor::parse_plan(read(options.plan));
}

void run(const Options& options) {
  auto one = dtensor::load_program(options.model);
  const auto inputs = inputs_of(options, one);
  const auto plan = plan_of(options, one);
  fmt::print("plan:\n{}\n", dtensor::to_string(plan));
  const torch::NoGradGuard no_grad;
  const auto truth = full_outputs(one.run(inputs));
  dtensor::run_ranks(options.ranks, [&](int64_t rank) {
    const torch::NoGradGuard no_grad_here;
    const auto mesh =
        dtensor::init_device_mesh(torch::kCPU, {options.ranks}, {"tp"});
    auto program = dtensor::load_program(options.model);
    dtensor::parallelize_program(program, mesh, dtensor::make_plan(plan));
    Values outputs;
    std::ostringstream report;
    {
      const dtensor::CommDebugMode counted;
      outputs = program.run(inputs);
      report << counted;
    }
    const auto ours = full_outputs(outputs);
    const auto off = difference(ours, truth);
    if (rank == 0) {
      std::cout << program << "\n";
      const auto names = program.output_names();
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (outputs[i].isTensor()) {
          std::cout << "result " << names[i] << (names[i].empty() ? "" : " ")
                    << *dtensor::DTensor(outputs[i].toTensor()).spec() << "\n";
        }
      }
      std::cout << "\n" << report.str();
      fmt::print(
          "{} ranks against one: largest difference {:.1e} of the largest "
          "value\n",
          options.ranks,
          off);
      CHECK_THAT(off < 1e-4);
    }
  });
}

} // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Runs an exported program on several ranks and compares it "
      "with one rank.");
  app.add_option("model", options.model, "file written by torch.export.save()")
      ->required();
  app.add_option("--ranks", options.ranks, "threads that share the model")
      ->check(CLI::PositiveNumber);
  auto* plan = app.add_option("--plan", options.plan, "a file with a plan");
  app.add_flag("--auto", options.find_plan, "find a plan automatically")
      ->excludes(plan);
  app.add_option(
      "--inputs", options.inputs, "list of inputs written by torch.save()");
  CLI11_PARSE(app, argc, argv);
  arguments::refuse_launcher("program");
  try {
    run(options);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
