// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/trace.h>

#include <c10/util/StringUtil.h>
#include <dtensor/comm/observer.h>
#include <dtensor/comm/world.h>
#include <dtensor/debug/module_tracker_impl.h>
#include <dtensor/debug/operator_observer_impl.h>
#include <dtensor/debug/report_text_impl.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace dtensor {
namespace detail {

struct TraceEvent {
  std::string name;
  const char* category = "";
  double begin = 0; // microseconds
  double end = 0;
  size_t lane = 0;
  ReportJson args = ReportJson::object();
};

namespace {

// Returns the time of the host's clock, not relative to the process.
double now() {
  using Microseconds = std::chrono::duration<double, std::micro>;
  return Microseconds(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Returns the time with three decimal places.
double rounded(double microseconds) {
  return std::round(microseconds * 1000) / 1000;
}

ReportJson json_of(const TraceEvent& event, int64_t rank) {
  return {
      {"name", event.name},
      {"cat", event.category},
      {"ph", "X"},
      {"ts", rounded(event.begin)},
      {"dur", rounded(event.end - event.begin)},
      {"pid", rank},
      {"tid", event.lane},
      {"args", event.args}};
}

// Returns the event that names a process or a thread in a viewer.
ReportJson name_json(
    const char* what,
    int64_t rank,
    size_t lane,
    const std::string& name) {
  return {
      {"name", what},
      {"ph", "M"},
      {"pid", rank},
      {"tid", lane},
      {"args", ReportJson{{"name", name}}}};
}

void add_cause(ReportJson& args, const ModuleTracker::Cause& cause) {
  if (!cause.module.empty()) {
    args["module"] = cause.module;
  }
  args["pass"] = cause.backward ? "backward" : "forward";
}

ReportJson args_of(const OperatorText& text) {
  auto args = ReportJson::object();
  args["operands"] = text.operands;
  if (!text.mesh.empty()) {
    args["mesh"] = text.mesh;
  }
  return args;
}

ReportJson args_of(const CollectiveEvent& event) {
  ReportJson args = {
      {"mesh_dim", event.label},
      {"ranks", event.group_size},
      {"bytes", event.payload_bytes},
      {"sent", event.wire_bytes}};
  add_cause(args, {event.module, event.backward});
  return args;
}

bool is_collective(std::string_view name) {
  return name.starts_with("dtensor::") && name != "dtensor::wait";
}

} // namespace

struct TraceState {
  struct OfRank {
    int64_t rank = 0;
    size_t lanes = 0;
    std::vector<TraceEvent> events;
  };
  std::mutex mutex;
  std::vector<OfRank> ranks;
};

// Records one rank, in all its threads.
class TraceRecorder final : public OperatorObserver, public CommObserver {
 public:
  TraceRecorder(std::shared_ptr<TraceState> state, torch::nn::Module* model)
      : state_(std::move(state)),
        tracker_(model) {
    lane();
  }
  ~TraceRecorder() override {
    const auto begins_first = [](const TraceEvent& a, const TraceEvent& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    };
    std::ranges::stable_sort(events_, begins_first);
    const std::lock_guard lock(state_->mutex);
    state_->ranks.push_back({rank_, lanes_.size(), std::move(events_)});
  }

  void on_begin(const at::RecordFunction& call) override {
    const std::lock_guard lock(mutex_);
    auto& lane = this->lane();
    auto event = described(call, lane);
    event.begin = now();
    lane.running.push_back(std::move(event));
  }

  void on_end(const at::RecordFunction&) override {
    const auto end = now();
    const std::lock_guard lock(mutex_);
    auto& lane = this->lane();
    if (lane.running.empty()) {
      return; // the range began before this mode, under another mode
    }
    auto event = std::move(lane.running.back());
    lane.running.pop_back();
    if (event.category == kOperator && --lane.operators == 0) {
      tracker_.end();
    }
    event.end = end;
    events_.push_back(std::move(event));
  }

  // Called just before the collective begins. An all-gather calls this function
  // while it runs, when its size is known.
  void on_collective(const CollectiveEvent& event) override {
    const std::lock_guard lock(mutex_);
    auto& lane = this->lane();
    const bool has_begun = event.kind == CollectiveKind::kAllGather &&
        !lane.running.empty() &&
        lane.running.back().name == "dtensor::all_gather";
    if (has_begun) {
      lane.running.back().args = args_of(event);
    } else {
      lane.next_args = args_of(event);
    }
  }

 private:
  static constexpr const char* kOperator = "operator";

  // The state of one thread.
  struct Lane {
    uint64_t thread = 0;
    size_t index = 0;
    size_t operators = 0; // number of running operators
    std::vector<TraceEvent> running;
    ReportJson next_args = ReportJson::object(); // args of the next collective
  };

  Lane& lane() {
    const auto thread = at::RecordFunction::currentThreadId();
    for (auto& lane : lanes_) {
      if (lane.thread == thread) {
        return lane;
      }
    }
    lanes_.push_back({thread, lanes_.size(), 0, {}, ReportJson::object()});
    return lanes_.back();
  }

  TraceEvent described(const at::RecordFunction& call, Lane& lane) {
    TraceEvent event;
    event.lane = lane.index;
    event.name = call.name();
    if (call.scope() == at::RecordScope::FUNCTION) {
      event.category = kOperator;
      const auto text = text_of(call);
      event.name = text.name;
      event.args = args_of(text);
      if (lane.operators++ == 0) {
        add_cause(event.args, tracker_.begin(call));
      }
    } else if (call.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      event.category = "node";
      add_cause(event.args, tracker_.now());
    } else if (is_collective(event.name)) {
      event.category = "collective";
      event.args = std::exchange(lane.next_args, ReportJson::object());
    } else {
      event.category = event.name == "dtensor::wait" ? "wait" : "range";
      add_cause(event.args, tracker_.now());
    }
    return event;
  }

  std::shared_ptr<TraceState> state_;
  int64_t rank_ = get_rank();
  std::mutex mutex_;
  std::vector<Lane> lanes_;
  std::vector<TraceEvent> events_;
  ModuleTracker tracker_;
  CommObserverGuard collectives_{*this};
  OperatorObserverGuard operators_{*this, ObservedEvents::kOperators};
  OperatorObserverGuard ranges_{*this, ObservedEvents::kRanges};
};

} // namespace detail

Trace::Trace() : state_(std::make_shared<detail::TraceState>()) {}

Trace::~Trace() = default;

std::string Trace::to_json() const {
  using namespace detail;
  std::vector<ReportJson> items;
  const std::lock_guard lock(state_->mutex);
  for (const auto& of_rank : state_->ranks) {
    const auto rank = of_rank.rank;
    items.push_back(
        name_json("process_name", rank, 0, c10::str("rank ", rank)));
    for (size_t lane = 0; lane < of_rank.lanes; ++lane) {
      const auto name = lane == 0 ? "rank" : c10::str("thread ", lane);
      items.push_back(name_json("thread_name", rank, lane, name));
    }
    for (const auto& event : of_rank.events) {
      items.push_back(json_of(event, rank));
    }
  }
  return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": " + json_lines(items) +
      "}\n";
}

void Trace::write(const std::string& file_name) const {
  detail::write_file("Trace", file_name, to_json());
}

TraceMode::TraceMode(Trace& trace)
    : recorder_(
          std::make_unique<detail::TraceRecorder>(trace.state_, nullptr)) {}

TraceMode::TraceMode(Trace& trace, torch::nn::Module& model)
    : recorder_(std::make_unique<detail::TraceRecorder>(trace.state_, &model)) {
}

TraceMode::~TraceMode() = default;

} // namespace dtensor
