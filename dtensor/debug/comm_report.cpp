// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/comm_report_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/format_text.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

// The list of trivial operators in Python's CommDebugMode.
constexpr std::array<std::string_view, 6> kTrivial = {
    "aten::detach",
    "aten::t",
    "aten::view",
    "aten::_to_copy",
    "aten::as_strided",
    "aten::transpose.int"};

// Returns the key of a call. Calls with equal keys share an entry.
std::string key_of(
    const OperatorText& text,
    const ModuleTracker::Cause& cause,
    const std::vector<size_t>& running) {
  auto key = running.empty()
      ? c10::str(cause.module, cause.backward ? "|b|" : "|f|")
      : c10::str(running.back(), "|");
  key += text.name;
  for (const auto& operand : text.operands) {
    key += "|" + operand;
  }
  return key + text.mesh;
}

// Returns true for operators that only reinterpret a tensor, such as
// "aten::view". Operators called by a trivial operator are trivial too.
bool is_trivial(const OperatorText& op) {
  return std::ranges::find(kTrivial, op.name) != kTrivial.end();
}

// Returns true if the noise level shows the operator: 1 shows operators on
// DTensors, 2 also the others except trivial ones, 3 also trivial operators.
bool is_shown(const OperatorText& op, int64_t noise_level) {
  return noise_level > 2 ||
      (!is_trivial(op) && (noise_level == 2 || !op.mesh.empty()));
}

constexpr const char* kNoModule = "-";
constexpr const char* kModel = "(model)";

const char* pass_of(bool backward) {
  return backward ? "backward" : "forward";
}

// Returns a number with up to 15 digits.
std::string number_text(double number) {
  std::ostringstream text;
  text.precision(15);
  text << number;
  return text.str();
}

TextRow row_of(const CommRecord& r) {
  return {
      r.module.empty() ? kNoModule : r.module,
      pass_of(r.backward),
      std::string(to_string(r.kind)),
      r.mesh_dim,
      std::to_string(r.count),
      std::to_string(r.payload_bytes),
      number_text(r.wire_bytes)};
}

ReportJson json_of(const CommRecord& r) {
  return {
      {"module", r.module},
      {"pass", pass_of(r.backward)},
      {"kind", to_string(r.kind)},
      {"mesh_dim", r.mesh_dim},
      {"count", r.count},
      {"payload_bytes", r.payload_bytes},
      {"wire_bytes", r.wire_bytes}};
}

// Returns the model's modules, followed by other modules with records, in order
// of first occurrence.
std::vector<ModuleInfo> reported_modules(const CommReport& report) {
  std::vector<ModuleInfo> modules;
  if (report.model != nullptr) {
    modules = modules_of(*report.model);
  }
  const auto add = [&](std::string_view name) {
    const auto same = [&](const ModuleInfo& m) { return m.name == name; };
    if (std::ranges::none_of(modules, same)) {
      modules.emplace_back().name = name;
    }
  };
  for (const size_t i : report.operators.outermost()) {
    add(report.operators[i].module);
  }
  for (const auto& r : report.records) {
    add(r.module);
  }
  return modules;
}

std::string layout_text(const at::Tensor& t) {
  return is_dtensor(t) ? to_string(*DTensor(t).spec()) : shape_text(t);
}

// Returns "aten::mm(f32[8, 6] S(0), f32[6, 4] R) on (tp=2), 3 calls".
std::string text_of(const SeenOperator& op) {
  return c10::str(
      op.text.name,
      "(",
      c10::Join(", ", op.text.operands),
      ")",
      op.text.mesh.empty() ? "" : " on " + op.text.mesh,
      op.count > 1 ? c10::str(", ", op.count, " calls") : "");
}

// Returns "all_reduce on tp, 192 bytes in 2 calls".
std::string text_of(const CommRecord& r) {
  return detail::format_text(
      "{} on {}, {} bytes{}",
      to_string(r.kind),
      r.mesh_dim,
      r.payload_bytes,
      r.count > 1 ? detail::format_text(" in {} calls", r.count) : "");
}

std::string indent(size_t depth) {
  return std::string(2 * depth, ' ');
}

// The report of a single module.
class ModuleReport {
 public:
  ModuleReport(const CommReport& report, const ModuleInfo& module)
      : report_(report),
        module_(module) {}

  std::string text() const {
    auto text = indent(module_.depth) + title() + "\n";
    for (const auto& [name, parameter] : module_.parameters) {
      text += indent(module_.depth + 1) + name + ": " + layout_text(parameter) +
          "\n";
    }
    return text + pass_text(/*backward=*/false) + pass_text(/*backward=*/true);
  }

  ReportJson json() const {
    auto parameters = ReportJson::object();
    for (const auto& [name, parameter] : module_.parameters) {
      parameters[name] = layout_text(parameter);
    }
    return {
        {"name", module_.name},
        {"type", module_.type},
        {"parameters", std::move(parameters)},
        {"forward", pass_json(/*backward=*/false)},
        {"backward", pass_json(/*backward=*/true)}};
  }

 private:
  std::string title() const {
    const auto name = !module_.name.empty() ? module_.name
        : report_.model != nullptr          ? kModel
                                            : kNoModule;
    return module_.type.empty() ? name : name + "  " + module_.type;
  }

  std::string pass_text(bool backward) const {
    std::string text;
    for (const auto& r : report_.records) {
      if (r.module == module_.name && r.backward == backward) {
        text += indent(module_.depth + 2) + text_of(r) + "\n";
      }
    }
    for (const size_t i : outermost(backward)) {
      add_operator(text, i, module_.depth + 2);
    }
    return text.empty()
        ? ""
        : indent(module_.depth + 1) + pass_of(backward) + "\n" + text;
  }
  // Adds a call. A call that is not shown is replaced by the calls that it
  // made, unless it is trivial.
  void add_operator(std::string& text, size_t index, size_t depth) const {
    const auto& op = report_.operators[index];
    const bool shown = is_shown(op.text, report_.noise_level);
    if (shown) {
      text += indent(depth) + text_of(op) + "\n";
    } else if (is_trivial(op.text)) {
      return;
    }
    for (const size_t call : op.calls) {
      add_operator(text, call, depth + (shown ? 1 : 0));
    }
  }

  ReportJson pass_json(bool backward) const {
    auto items = ReportJson::array();
    for (const size_t i : outermost(backward)) {
      add_json(items, i);
    }
    return items;
  }
  void add_json(ReportJson& items, size_t index) const {
    const auto& op = report_.operators[index];
    const bool shown = is_shown(op.text, report_.noise_level);
    if (!shown && is_trivial(op.text)) {
      return;
    }
    auto calls = ReportJson::array();
    for (const size_t call : op.calls) {
      add_json(shown ? calls : items, call);
    }
    if (shown) {
      items.push_back(ReportJson{
          {"name", op.text.name},
          {"operands", op.text.operands},
          {"mesh", op.text.mesh},
          {"count", op.count},
          {"calls", std::move(calls)}});
    }
  }

  std::vector<size_t> outermost(bool backward) const {
    std::vector<size_t> found;
    for (const size_t i : report_.operators.outermost()) {
      const auto& op = report_.operators[i];
      if (op.module == module_.name && op.backward == backward) {
        found.push_back(i);
      }
    }
    return found;
  }

  const CommReport& report_;
  const ModuleInfo& module_;
};

} // namespace

void OperatorLog::reset() {
  seen_.clear();
  outermost_.clear();
  index_.clear();
  running_.clear();
}

void OperatorLog::on_begin(const at::RecordFunction& call) {
  auto text = text_of(call);
  const auto cause = running_.empty()
      ? tracker_.begin(call)
      : ModuleTracker::Cause{
            seen_[running_.back()].module, seen_[running_.back()].backward};
  const auto [it, is_new] =
      index_.emplace(key_of(text, cause, running_), seen_.size());
  if (is_new) {
    auto& siblings =
        running_.empty() ? outermost_ : seen_[running_.back()].calls;
    siblings.push_back(seen_.size());
    seen_.push_back({std::move(text), cause.module, cause.backward, 0, {}});
  }
  seen_[it->second].count += 1;
  running_.push_back(it->second);
}

void OperatorLog::on_end(const at::RecordFunction&) {
  if (running_.empty()) {
    return; // it began before a reset
  }
  running_.pop_back();
  if (running_.empty()) {
    tracker_.end();
  }
}

std::string comm_table(
    const std::vector<CommRecord>& records,
    const CommTotal& sum) {
  constexpr size_t kFirstNumber = 4;
  std::vector<TextRow> rows = {
      {"module", "pass", "collective", "mesh dim", "count", "bytes", "sent"}};
  for (const auto& r : records) {
    rows.push_back(row_of(r));
  }
  rows.push_back(
      {"total",
       "",
       "",
       "",
       std::to_string(sum.count),
       std::to_string(sum.payload_bytes),
       number_text(sum.wire_bytes)});
  return aligned(rows, kFirstNumber);
}

std::string module_text(const CommReport& report) {
  std::string text;
  for (const auto& module : reported_modules(report)) {
    text += "\n" + ModuleReport(report, module).text();
  }
  return text;
}

std::string comm_json(const std::vector<CommRecord>& records) {
  std::vector<ReportJson> items;
  for (const auto& r : records) {
    items.push_back(json_of(r));
  }
  return json_lines(items);
}

std::string module_json(const CommReport& report) {
  std::vector<ReportJson> modules;
  for (const auto& module : reported_modules(report)) {
    modules.push_back(ModuleReport(report, module).json());
  }
  return "{\"collectives\": " + comm_json(report.records) +
      ", \"modules\": " + json_lines(modules) + "}\n";
}

} // namespace dtensor::detail
