// SPDX-License-Identifier: BSD-3-Clause
#include "machine.h"

namespace dtensor::parity {
namespace {

using Names = std::vector<std::string>;

Names names_in(const Json& step) {
  return step.contains("names") && !step["names"].is_null()
      ? step["names"].get<Names>()
      : Names();
}

void init(Machine& machine, const Json& step) {
  machine.bind(
      step["to"], init_device_mesh(at::kCPU, step["shape"], names_in(step)));
}

void of_ranks(Machine& machine, const Json& step) {
  const auto& ranks = step["ranks"];
  std::vector<int64_t> all;
  std::vector<int64_t> shape{static_cast<int64_t>(ranks.size())};
  for (const auto& item : ranks) {
    if (item.is_array()) {
      shape.resize(2);
      shape[1] = static_cast<int64_t>(item.size());
      all.insert(all.end(), item.begin(), item.end());
    } else {
      all.push_back(item);
    }
  }
  machine.bind(
      step["to"],
      make_device_mesh(
          at::kCPU, at::tensor(all).reshape(shape), names_in(step)));
}

void of_groups(Machine& machine, const Json& step) {
  const auto& mesh = machine.mesh(step["of"]);
  const auto groups = get_all_groups(mesh);
  if (!step.contains("dim")) {
    machine.bind(
        step["to"],
        from_group(
            groups,
            at::kCPU,
            mesh.shape().vec(),
            mesh.ranks(),
            names_in(step)));
    return;
  }
  const auto& dim = step["dim"];
  const auto index = dim.is_string() ? mesh.dim_of(dim.get<std::string>())
                                     : dim.get<int64_t>();
  machine.bind(
      step["to"],
      from_group(
          groups.at(static_cast<size_t>(index)), at::kCPU, names_in(step)));
}

void slice(Machine& machine, const Json& step) {
  const auto names = names_in(step);
  const auto& mesh = machine.mesh(step["of"]);
  machine.bind(
      step["to"], names.size() == 1 ? mesh[names[0]] : mesh.slice(names));
}

void flatten(Machine& machine, const Json& step) {
  const auto& name = step["name"];
  machine.bind(
      step["to"],
      machine.mesh(step["of"])
          .flatten(name.is_null() ? "" : name.get<std::string>()));
}

void unflatten(Machine& machine, const Json& step) {
  machine.bind(
      step["to"],
      machine.mesh(step["of"])
          .unflatten(
              step["dim"].get<int64_t>(), step["sizes"], names_in(step)));
}

void concatenate(Machine& machine, const Json& step) {
  std::vector<DeviceMesh> meshes;
  for (const auto& name : step["of"]) {
    meshes.push_back(machine.mesh(name));
  }
  machine.bind(step["to"], DeviceMesh::concatenate(meshes));
}

void show_mesh(Machine& machine, const Json& step) {
  const auto& mesh = machine.mesh(step["of"]);
  auto record = record_of(mesh);
  record["device_type"] = c10::DeviceTypeName(mesh.device_type(), true);
  record["ndim"] = mesh.ndim();
  record["size"] = mesh.size();
  record["rank"] = mesh.get_rank();
  record["sizes"] = Json::array();
  record["local_ranks"] = Json::array();
  record["groups"] = Json::array();
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    record["sizes"].push_back(mesh.size(dim));
    record["local_ranks"].push_back(mesh.get_local_rank(dim));
    record["groups"].push_back(get_group(mesh, dim).ranks());
  }
  record["all_groups"] = get_all_groups(mesh).size();
  machine.note(step["of"], record);
}

// Calls mesh.method(dim). `dim` is a number, a name or absent.
Json ask(const DeviceMesh& mesh, const std::string& method, const Json& dim) {
  const auto with_dim = [&](const auto& fn) -> Json {
    return dim.is_string() ? fn(dim.get<std::string>())
                           : fn(dim.get<int64_t>());
  };
  if (method == "get_coordinate") {
    return record_of(mesh)["coordinate"];
  }
  if (method == "get_rank") {
    return mesh.get_rank();
  }
  if (method == "size") {
    return dim.is_null()
        ? Json(mesh.size())
        : with_dim([&](const auto& d) { return Json(mesh.size(d)); });
  }
  if (method == "get_local_rank") {
    return dim.is_null()
        ? Json(mesh.get_local_rank())
        : with_dim([&](const auto& d) { return Json(mesh.get_local_rank(d)); });
  }
  TORCH_CHECK(method == "get_group", "no method ", method);
  return dim.is_null() ? Json(get_group(mesh).ranks())
                       : with_dim([&](const auto& d) {
                           return Json(get_group(mesh, d).ranks());
                         });
}

void ask_mesh(Machine& machine, const Json& step) {
  const std::string of = step["of"];
  const std::string method = step["method"];
  machine.note(
      of + "." + method,
      ask(machine.mesh(of), method, step.value("dim", Json())));
}

void show_equal(Machine& machine, const Json& step) {
  const std::string a = step["of"][0];
  const std::string b = step["of"][1];
  machine.note(a + " == " + b, machine.mesh(a) == machine.mesh(b));
}

} // namespace

Steps mesh_steps() {
  return {
      {"init_device_mesh", init},
      {"device_mesh", of_ranks},
      {"from_group", of_groups},
      {"slice", slice},
      {"flatten", flatten},
      {"unflatten", unflatten},
      {"concatenate", concatenate},
      {"show_mesh", show_mesh},
      {"ask_mesh", ask_mesh},
      {"show_equal", show_equal}};
}

} // namespace dtensor::parity
