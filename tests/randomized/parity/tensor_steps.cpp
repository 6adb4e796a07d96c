// SPDX-License-Identifier: BSD-3-Clause
#include "machine.h"

namespace dtensor::parity {
namespace {

void make_tensor(Machine& machine, const Json& step) {
  const bool differs = step.value("differs", false);
  auto made = pattern(
      step, step.value("seed", int64_t{1}) + (differs ? 11 * get_rank() : 0));
  if (step.contains("permute")) {
    made = made.permute(step["permute"].get<std::vector<int64_t>>());
  }
  made.requires_grad_(step.value("requires_grad", false));
  machine.bind(step["to"], made);
}

void local_part(Machine& machine, const Json& step) {
  const auto& rows = step["rows"][static_cast<size_t>(get_rank())];
  auto part = machine.tensor(step["of"])
                  .detach()
                  .slice(0, rows[0].get<int64_t>(), rows[1].get<int64_t>())
                  .clone();
  part.requires_grad_(step.value("requires_grad", false));
  machine.bind(step["to"], part);
}

Placements placements_in(const Json& step) {
  return placements_of(step.value("placements", Json::array()));
}

std::optional<Placements> grad_placements(const Json& step) {
  if (!step.contains("grad_placements")) {
    return std::nullopt;
  }
  return placements_of(step["grad_placements"]);
}

void distribute_a_tensor(Machine& machine, const Json& step) {
  machine.bind(
      step["to"],
      distribute_tensor(
          machine.tensor(step["of"]),
          machine.mesh_of(step),
          placements_in(step),
          src_data_rank(step)));
}

void from_local(Machine& machine, const Json& step) {
  FromLocalOptions options;
  options.run_check = step.value("run_check", false);
  if (step.contains("shape")) {
    options.shape = step["shape"].get<std::vector<int64_t>>();
  }
  if (step.contains("stride")) {
    options.stride = step["stride"].get<std::vector<int64_t>>();
  }
  options.grad_placements = grad_placements(step);
  machine.bind(
      step["to"],
      DTensor::from_local(
          machine.tensor(step["of"]),
          machine.mesh_of(step),
          placements_in(step),
          options));
}

void redistribute(Machine& machine, const Json& step) {
  RedistributeOptions options;
  options.async_op = step.value("async_op", false);
  if (step.contains("forward_dtype")) {
    options.forward_dtype = dtype_of(step["forward_dtype"]);
  }
  if (step.contains("backward_dtype")) {
    options.backward_dtype = dtype_of(step["backward_dtype"]);
  }
  const DTensor given(machine.tensor(step["of"]));
  const auto placements = placements_in(step);
  machine.bind(
      step["to"],
      step.contains("mesh")
          ? given.redistribute(machine.mesh_of(step), placements, options)
          : given.redistribute(placements, options));
}

void to_local(Machine& machine, const Json& step) {
  machine.bind(
      step["to"],
      DTensor(machine.tensor(step["of"])).to_local(grad_placements(step)));
}

void whole(Machine& machine, const Json& step) {
  machine.bind(
      step["to"],
      DTensor(machine.tensor(step["of"])).full_tensor(grad_placements(step)));
}

at::Tensor made_by(
    const std::string& name,
    const Json& step,
    const DeviceMesh& mesh,
    const FactoryOptions& options) {
  const std::vector<int64_t> sizes = step["sizes"];
  const auto placements = placements_in(step);
  if (name == "full") {
    return dtensor::full(
        sizes, step["value"].get<double>(), mesh, placements, options);
  }
  using Factory = at::Tensor (*)(
      SizesRef, const DeviceMesh&, PlacementsRef, const FactoryOptions&);
  static const std::map<std::string, Factory> factories = {
      {"ones", dtensor::ones},
      {"zeros", dtensor::zeros},
      {"empty", dtensor::empty},
      {"rand", dtensor::rand},
      {"randn", dtensor::randn}};
  return factories.at(name)(sizes, mesh, placements, options);
}

void make_by_factory(Machine& machine, const Json& step) {
  FactoryOptions options;
  if (step.contains("dtype")) {
    options.dtype = dtype_of(step["dtype"]);
  }
  options.requires_grad = step.value("requires_grad", false);
  const std::string name = step["fn"];
  auto made = made_by(name, step, machine.mesh_of(step), options);
  if (name == "empty" || name == "rand" || name == "randn") {
    const c10::NoGradGuard no_grad;
    made.zero_(); // its values are not compared
  }
  machine.bind(step["to"], made);
}

void show(Machine& machine, const Json& step) {
  for (const auto& name : step["of"]) {
    machine.note(name, record_of(machine.tensor(name)));
  }
}

void show_local(Machine& machine, const Json& step) {
  machine.note(
      step["of"],
      record_of(DTensor(machine.tensor(step["of"]).detach()).to_local()));
}

void ask_placement(Machine& machine, const Json& step) {
  const std::string text = step["of"];
  const auto placement = placements_of(Json::array({text}))[0];
  machine.note(
      text,
      {{"replicate", placement.is_replicate()},
       {"partial", placement.is_partial()},
       {"shard", placement.is_shard()},
       {"first", placement.is_shard(0)},
       {"equal",
        {placement == Replicate(),
         placement == Shard(0),
         placement == Partial()}}});
}

void ask_chunks(Machine& machine, const Json& step) {
  const int64_t parts = step["parts"];
  Json chunks = Json::array();
  for (int64_t index = 0; index < parts; ++index) {
    const auto [begin, end] = chunk(step["size"], parts, index);
    chunks.push_back({end - begin, begin});
  }
  machine.note("chunks", chunks);
}

} // namespace

Steps tensor_steps() {
  return {
      {"tensor", make_tensor},
      {"local_part", local_part},
      {"distribute_tensor", distribute_a_tensor},
      {"from_local", from_local},
      {"redistribute", redistribute},
      {"to_local", to_local},
      {"full_tensor", whole},
      {"factory", make_by_factory},
      {"ask_placement", ask_placement},
      {"ask_chunks", ask_chunks},
      {"show", show},
      {"show_local", show_local}};
}

} // namespace dtensor::parity
