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
//   trace.write("trace.json");               // one process per rank
//
// Launched processes write a file each. Times are from the host's clock, so the
// "traceEvents" of several files from one host can be merged.
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

/// The operators, autograd nodes, collectives, waits for asynchronous
/// collectives and ranges of the program (RECORD_USER_SCOPE) of all ranks that
/// had a TraceMode.
class DTENSOR_API Trace {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Returns the trace event format: complete events with times in
  /// microseconds. pid is the rank; tid is 0, or greater for other threads of
  /// the rank. "args" has operands, mesh, mesh dimension, bytes, module and
  /// pass. Events of living modes are not included.
  std::string to_json() const;
  /// Writes the JSON. Throws RuntimeError if writing fails.
  void write(const std::string& file_name) const;

 private:
  friend class TraceMode;
  std::shared_ptr<detail::TraceState> state_;
};

/// Traces this rank while the mode lives. Memory grows with every operator. An
/// operator takes a few microseconds longer, which its times include.
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
