// SPDX-License-Identifier: BSD-3-Clause
// Trace: a timeline of all ranks, as a file for chrome://tracing or
// ui.perfetto.dev.
//
//   Trace trace;
//   run_ranks(4, [&] {
//     ...
//     const TraceMode mode(trace, *model);   // traces this rank
//     step();
//   });
//   trace.write("trace.json");               // ranks appear as processes
//
// If ranks are processes, each writes a file of its own. Times are those of the
// host's clock, so the "traceEvents" of files from one host can be merged.
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

/// Events of all ranks that had a TraceMode: operators, autograd nodes,
/// collectives, waits for asynchronous collectives, and ranges of the program
/// (RECORD_USER_SCOPE).
class DTENSOR_API Trace {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Returns the trace event format: complete events with times in
  /// microseconds. pid is the rank; tid is 0, or greater for other threads of
  /// the rank. "args" has operands, mesh, mesh dimension, bytes, module and
  /// pass. Events of a TraceMode are included once the mode is destroyed.
  std::string to_json() const;
  /// Writes the JSON. Throws RuntimeError if writing fails.
  void write(const std::string& file_name) const;

 private:
  friend class TraceMode;
  std::shared_ptr<detail::TraceState> state_;
};

/// Scope that traces this rank. Memory grows with every operator. The recorded
/// time of an operator includes the few microseconds that tracing takes.
/// Python: torch.profiler.profile, which also shows collectives of dtensor.
class DTENSOR_API TraceMode {
 public:
  explicit TraceMode(Trace& trace);
  /// Names modules of `model` as CommDebugMode does. `model` must outlive the
  /// mode.
  TraceMode(Trace& trace, torch::nn::Module& model);
  ~TraceMode();
  TraceMode(const TraceMode&) = delete;
  TraceMode& operator=(const TraceMode&) = delete;

 private:
  std::unique_ptr<detail::TraceRecorder> recorder_;
};

} // namespace dtensor
