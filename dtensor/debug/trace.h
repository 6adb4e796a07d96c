// SPDX-License-Identifier: BSD-3-Clause
// Trace: what ranks do when, as a file for a browser: chrome://tracing,
// ui.perfetto.dev.
//
//   Trace trace;
//   run_ranks(4, [&] {
//     ...
//     const TraceMode mode(trace, *model);   // this rank, while it lives
//     step();
//   });
//   trace.write("trace.json");               // a process for each rank
//
// Launched processes have a file each. Times are those of the host's clock, so
// the "traceEvents" of several files of one host fit into one.
#pragma once

#include <dtensor/api.h>

#include <memory>
#include <string>

namespace torch::nn {
class Module;
}

namespace dtensor {

namespace detail {
struct TraceState;
class TraceRecorder;
} // namespace detail

/// Calls of operators, nodes of backward passes, collectives, waits for
/// asynchronous ones and ranges of the program (RECORD_USER_SCOPE), of all
/// ranks that had a TraceMode.
class DTENSOR_API Trace {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// The trace event format: complete events with times in microseconds, whose
  /// pid is the rank and whose tid is 0, or more for other threads of the rank.
  /// "args" has operands, mesh, mesh dimension, bytes, module and pass.
  /// Modes that still live are not in it.
  std::string to_json() const;
  /// Writes that. Throws RuntimeError if it cannot be written.
  void write(const std::string& file_name) const;

 private:
  friend class TraceMode;
  std::shared_ptr<detail::TraceState> state_;
};

/// Traces this rank while it lives. Its memory grows with every operator.
/// Operators take some microseconds longer; their times say so.
/// Python: torch.profiler.profile, which sees collectives of dtensor, too.
class DTENSOR_API TraceMode {
 public:
  explicit TraceMode(Trace& trace);
  /// Modules of `model`, which outlives the mode, are named as CommDebugMode
  /// does.
  TraceMode(Trace& trace, torch::nn::Module& model);
  ~TraceMode();
  TraceMode(const TraceMode&) = delete;
  TraceMode& operator=(const TraceMode&) = delete;

 private:
  std::unique_ptr<detail::TraceRecorder> recorder_;
};

} // namespace dtensor
