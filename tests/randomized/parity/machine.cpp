// SPDX-License-Identifier: BSD-3-Clause
#include "machine.h"

#include <tests/warnings_of.h>

namespace dtensor::parity {
namespace {

const Steps& all_steps() {
  static const Steps steps = [] {
    Steps all = tensor_steps();
    all.merge(operator_steps());
    all.merge(mesh_steps());
    all.merge(module_steps());
    return all;
  }();
  return steps;
}

std::string bare(const std::string& name) {
  return name.starts_with("$") ? name.substr(1) : name;
}

Json counts_of(const CommDebugMode& comm) {
  Json counts = Json::object();
  for (const auto& [kind, count] : comm.get_comm_counts()) {
    counts[std::string(to_string(kind))] = count;
  }
  return counts;
}

// Returns the Python class of the error.
std::string class_of(const std::exception& error) {
  if (dynamic_cast<const c10::NotImplementedError*>(&error)) {
    return "NotImplementedError";
  }
  if (dynamic_cast<const c10::ValueError*>(&error)) {
    return "ValueError";
  }
  if (dynamic_cast<const c10::IndexError*>(&error)) {
    return "IndexError";
  }
  if (dynamic_cast<const c10::TypeError*>(&error)) {
    return "TypeError";
  }
  return dynamic_cast<const c10::Error*>(&error) ? "RuntimeError"
                                                 : "std::exception";
}

std::string text_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  return ours ? ours->what_without_backtrace() : error.what();
}

ExplicitRedistributionOptions explicit_options(const Json& given) {
  using Mode = ExplicitRedistributionOptions::Mode;
  return {
      .enable = given.value("enable", true),
      .strict = given.value("strict", false),
      .mode =
          given.value("mode", "raise") == "warn" ? Mode::kWarn : Mode::kRaise};
}

} // namespace

Machine::Machine(const Json& given) : case_(given) {
  result_["records"] = Json::array();
  result_["counts"] = Json::array();
  result_["error"] = nullptr;
  if (case_.contains("mesh")) {
    bind(
        "mesh",
        init_device_mesh(
            at::kCPU,
            case_["mesh"],
            case_.value("names", std::vector<std::string>())));
  }
}

Json Machine::run() {
  try {
    run_steps(case_["steps"], "");
  } catch (const std::exception& error) {
    result_["error"]["class"] = class_of(error);
    result_["error"]["text"] = text_of(error);
  }
  return result_;
}

void Machine::run_steps(const Json& steps, const std::string& prefix) {
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto number = prefix + std::to_string(i);
    const std::string what = steps[i]["do"];
    if (what == "within") {
      run_within(steps[i], number + ".");
      continue;
    }
    run_step(steps[i], number + " " + what);
  }
}

void Machine::run_step(const Json& step, const std::string& label) {
  const std::string what = step["do"];
  result_["error"] = {{"at", label}};
  test_text::Warnings warnings;
  if (what.starts_with("show")) {
    all_steps().at(what)(*this, step);
  } else {
    const CommDebugMode comm;
    all_steps().at(what)(*this, step);
    if (const auto counts = counts_of(comm); !counts.empty()) {
      result_["counts"].push_back({label, counts});
    }
  }
  if (step.value("watch_warnings", false)) {
    note(label, {{"warned", !warnings.texts().empty()}});
  }
  result_["error"] = nullptr;
}

void Machine::run_within(const Json& step, const std::string& prefix) {
  const std::string kind = step["scope"];
  const auto run = [&] { run_steps(step["steps"], prefix); };
  if (kind == "mesh") {
    const MeshScope scope(mesh(step["mesh"]));
    run();
  } else if (kind == "loss_parallel") {
    const auto scope = loss_parallel();
    run();
  } else if (kind == "implicit_replication") {
    const auto scope = implicit_replication();
    run();
  } else {
    TORCH_CHECK(kind == "explicit", "no scope ", kind);
    const ExplicitRedistributionContext scope(
        explicit_options(step["options"]));
    run();
  }
}

at::Tensor Machine::tensor(const std::string& name) const {
  constexpr std::string_view kGrad = ".grad";
  if (name.ends_with(kGrad)) {
    return tensor(name.substr(0, name.size() - kGrad.size())).grad();
  }
  return std::get<at::Tensor>(named_.at(bare(name)));
}

Tensors Machine::tensors(const Json& names) const {
  Tensors all;
  for (const auto& name : names) {
    all.push_back(tensor(name));
  }
  return all;
}

const DeviceMesh& Machine::mesh(const std::string& name) const {
  return std::get<DeviceMesh>(named_.at(bare(name)));
}

DeviceMesh Machine::mesh_of(const Json& step) const {
  if (!step.contains("mesh")) {
    return mesh("mesh");
  }
  return step["mesh"].is_null() ? DeviceMesh() : mesh(step["mesh"]);
}

const Callable& Machine::module(const std::string& name) const {
  return std::get<Callable>(named_.at(bare(name)));
}

void Machine::bind(const std::string& name, Value value) {
  named_[name] = std::move(value);
}

void Machine::bind_all(const Json& to, const Tensors& values) {
  if (to.is_string()) {
    bind(to.get<std::string>(), values.at(0));
    return;
  }
  for (size_t i = 0; i < to.size(); ++i) {
    bind(to[i].get<std::string>(), values.at(i));
  }
}

void Machine::note(const std::string& label, Json record) {
  result_["records"].push_back({label, std::move(record)});
}

} // namespace dtensor::parity
