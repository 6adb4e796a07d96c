// SPDX-License-Identifier: BSD-3-Clause
#include "profile.h"

#include "harness.h"

#include <ATen/record_function.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/backend_layer.h>
#include <dtensor/comm/world.h>
#include <dtensor/tensor/is_dtensor.h>

#include <algorithm>
#include <cstdio>

namespace bench {
namespace {

using namespace dtensor;

/// A call in progress.
struct Frame {
  double begin = 0;
  double within = 0; // seconds of nested calls
};

/// The profile of the watched rank, and its open calls, outermost first.
thread_local Profile* watching = nullptr;
thread_local std::vector<Frame> frames;

void begin_call() {
  frames.push_back({now(), 0});
}

void end_call(const std::string& name) {
  const Frame frame = frames.back();
  frames.pop_back();
  const double seconds = now() - frame.begin;
  if (!frames.empty()) {
    frames.back().within += seconds;
  }
  watching->enter(name, seconds - frame.within);
}

bool has_dtensor(const c10::IValue& value) {
  if (value.isTensor()) {
    return is_dtensor(value.toTensor());
  }
  if (!value.isTensorList()) {
    return false;
  }
  const auto list = value.toTensorVector();
  return std::any_of(list.begin(), list.end(), [](const at::Tensor& t) {
    return is_dtensor(t);
  });
}

/// Name of the operator that was entered.
struct OperatorName final : at::ObserverContext {
  explicit OperatorName(std::string text) : name(std::move(text)) {}
  std::string name;
};

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& call) {
  if (watching == nullptr) {
    return nullptr;
  }
  const auto inputs = call.inputs();
  const bool distributed =
      std::any_of(inputs.begin(), inputs.end(), has_dtensor);
  begin_call();
  return std::make_unique<OperatorName>(
      std::string(distributed ? "dtensor  " : "operator ") + call.name());
}

void on_end(const at::RecordFunction&, at::ObserverContext* context) {
  if (watching != nullptr && context != nullptr) {
    end_call(static_cast<OperatorName*>(context)->name);
  }
}

/// Measures the time of collectives.
class WatchedBackend final : public BackendLayer {
 public:
  using BackendLayer::BackendLayer;

  InFlight submit(Collective&& collective) override {
    const std::string name =
        c10::str("collective ", collective.function_name());
    begin_call();
    InFlight result = BackendLayer::submit(std::move(collective));
    end_call(name);
    return result;
  }
};

GroupBackendPtr watched(GroupBackendPtr backend) {
  return std::make_shared<WatchedBackend>(std::move(backend));
}

} // namespace

Profile::Scope::Scope(Profile* profile) : active_(profile != nullptr) {
  if (active_) {
    watching = profile;
    wrap_backends(watched);
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(on_begin, on_end).needsInputs(true));
  }
}

Profile::Scope::~Scope() {
  if (active_) {
    at::removeCallback(handle_);
    wrap_backends(nullptr);
    watching = nullptr;
  }
}

void Profile::start() {
  entries_.clear();
}

void Profile::enter(const std::string& name, double seconds) {
  Entry& entry = entries_[name];
  ++entry.calls;
  entry.seconds += seconds;
}

void Profile::print(const std::string& title, int64_t steps) const {
  using Row = std::pair<std::string, Entry>;
  std::vector<Row> rows(entries_.begin(), entries_.end());
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.second.seconds > b.second.seconds;
  });
  std::map<std::string, double> kinds;
  double total = 0;
  for (const auto& [name, entry] : rows) {
    kinds[name.substr(0, name.find(' '))] += entry.seconds;
    total += entry.seconds;
  }
  const double n = static_cast<double>(steps);
  std::printf("%s, per step of rank 0\n", title.c_str());
  for (const auto& [kind, seconds] : kinds) {
    std::printf(
        "%8.2f ms  %4.1f %%  all: %s\n",
        1e3 * seconds / n,
        100 * seconds / total,
        kind.c_str());
  }
  for (const auto& [name, entry] : rows) {
    if (entry.seconds < total / 500) {
      break;
    }
    std::printf(
        "%8.2f ms  %4.1f %%  %6.1f calls  %s\n",
        1e3 * entry.seconds / n,
        100 * entry.seconds / total,
        static_cast<double>(entry.calls) / n,
        name.c_str());
  }
}

} // namespace bench
