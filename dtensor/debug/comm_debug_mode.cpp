// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/comm_debug_mode.h>

#include <dtensor/debug/comm_report_impl.h>
#include <dtensor/error.h>
#include <dtensor/parallel/plan/module_names_impl.h>
#include <dtensor/tensor/dtensor.h>

#include <algorithm>
#include <ostream>

namespace dtensor {
namespace {

bool fits(const CommRecord& r, const CommFilter& filter) {
  return (!filter.kind || *filter.kind == r.kind) &&
      (!filter.mesh_dim || *filter.mesh_dim == r.mesh_dim) &&
      (!filter.module || *filter.module == r.module) &&
      (!filter.backward || *filter.backward == r.backward);
}

void check_level(int64_t noise_level) {
  DTENSOR_CHECK_VALUE(
      0 <= noise_level && noise_level <= 3,
      "[CommDebugMode] unknown noise level {}. Pass 0 (collectives), 1 (and "
      "operators on DTensors), 2 (and others) or 3 (all).",
      noise_level);
}

} // namespace

CommDebugMode::CommDebugMode()
    : operators_(std::make_unique<detail::OperatorLog>(nullptr)) {}

CommDebugMode::CommDebugMode(torch::nn::Module& model)
    : model_(&model),
      operators_(std::make_unique<detail::OperatorLog>(&model)) {}

CommDebugMode::~CommDebugMode() = default;

void CommDebugMode::on_collective(const CollectiveEvent& event) {
  const auto same = [&](const CommRecord& r) {
    return r.kind == event.kind && r.backward == event.backward &&
        r.module == event.module && r.mesh_dim == event.label;
  };
  auto it = std::ranges::find_if(records_, same);
  if (it == records_.end()) {
    CommRecord record;
    record.module = event.module;
    record.backward = event.backward;
    record.kind = event.kind;
    record.mesh_dim = event.label;
    it = records_.insert(it, std::move(record));
  }
  it->count += 1;
  it->payload_bytes += event.payload_bytes;
  it->wire_bytes += event.wire_bytes;
}

int64_t CommDebugMode::get_total_counts() const {
  return total().count;
}

std::map<CollectiveKind, int64_t> CommDebugMode::get_comm_counts() const {
  std::map<CollectiveKind, int64_t> counts;
  for (const auto& r : records_) {
    counts[r.kind] += r.count;
  }
  return counts;
}

CommTotal CommDebugMode::total(const CommFilter& filter) const {
  CommTotal sum;
  for (const auto& r : records_) {
    if (fits(r, filter)) {
      sum.count += r.count;
      sum.payload_bytes += r.payload_bytes;
      sum.wire_bytes += r.wire_bytes;
    }
  }
  return sum;
}

void CommDebugMode::reset() {
  records_.clear();
  operators_->reset();
}

const torch::nn::Module& CommDebugMode::model(const char* wanted_by) const {
  DTENSOR_CHECK(
      model_ != nullptr,
      "[CommDebugMode] {}() needs the parameters of a model, but the mode was "
      "created without one. Create it as CommDebugMode comm(*model).",
      wanted_by);
  return *model_;
}

std::map<std::string, std::map<std::string, at::Tensor>>
CommDebugMode::get_parameter_info() const {
  std::map<std::string, std::map<std::string, at::Tensor>> parameters;
  for (const auto& module : detail::modules_of(model("get_parameter_info"))) {
    for (const auto& [name, parameter] : module.parameters) {
      parameters[module.name][name] = parameter.detach();
    }
  }
  return parameters;
}

std::map<std::string, Placements> CommDebugMode::get_sharding_info() const {
  std::map<std::string, Placements> layouts;
  for (const auto& module : detail::modules_of(model("get_sharding_info"))) {
    for (const auto& [name, parameter] : module.parameters) {
      if (is_dtensor(parameter)) {
        layouts[detail::full_name(module.name, name)] =
            Placements(DTensor(parameter).placements());
      }
    }
  }
  return layouts;
}

std::string CommDebugMode::generate_comm_debug_tracing_table(
    int64_t noise_level) const {
  check_level(noise_level);
  auto text = detail::comm_table(records_, total());
  if (noise_level > 0) {
    text += detail::module_text({records_, *operators_, model_, noise_level});
  }
  return text;
}

void CommDebugMode::log_comm_debug_tracing_table_to_file(
    const std::string& file_name,
    int64_t noise_level) const {
  detail::write_file(
      "CommDebugMode",
      file_name,
      generate_comm_debug_tracing_table(noise_level));
}

std::string CommDebugMode::generate_json_dump(int64_t noise_level) const {
  check_level(noise_level);
  return noise_level == 0
      ? detail::comm_json(records_) + "\n"
      : detail::module_json({records_, *operators_, model_, noise_level});
}

void CommDebugMode::generate_json_dump(
    const std::string& file_name,
    int64_t noise_level) const {
  detail::write_file(
      "CommDebugMode", file_name, generate_json_dump(noise_level));
}

std::ostream& operator<<(std::ostream& os, const CommDebugMode& m) {
  return os << m.generate_comm_debug_tracing_table();
}

} // namespace dtensor
