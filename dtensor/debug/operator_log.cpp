// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/operator_log_impl.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
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

bool is_trivial(const OperatorText& op) {
  return std::ranges::find(kTrivial, op.name) != kTrivial.end();
}

bool is_shown(const OperatorText& op, int64_t noise_level) {
  return noise_level > 2 ||
      (!is_trivial(op) && (noise_level == 2 || op.distributed()));
}

} // namespace dtensor::detail
