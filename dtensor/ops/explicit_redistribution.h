// SPDX-License-Identifier: BSD-3-Clause
// ExplicitRedistributionContext: makes the implicit redistribution of an
// operand an error or a warning.
//
//   const ExplicitRedistributionContext only_explicit;
//   at::mm(x, w);    // x S(1), w R: an error that names x and its layouts
//
// docs/concepts/experimental.md lists what counts as implicit.
#pragma once

#include <dtensor/api.h>

#include <cstdint>
#include <set>
#include <string>

namespace dtensor {

/// Options of an ExplicitRedistributionContext.
struct ExplicitRedistributionOptions {
  /// Reaction to an implicit redistribution: an error or a warning.
  enum class Mode : uint8_t { kRaise, kWarn };

  /// False allows implicit redistribution again, inside an outer context.
  bool enable = true;
  /// True also reports redistributions that send nothing, such as Replicate to
  /// Shard.
  bool strict = false;
  /// kRaise throws; kWarn warns, once per context and message.
  Mode mode = Mode::kRaise;
};

/// Scope in which this rank's operators throw RuntimeError, or warn, instead of
/// redistributing an operand. An error is thrown before any communication. The
/// message names the module, the operand and both layouts.
///
/// Explicit, and therefore allowed: redistribute(), full_tensor(), local_map(),
/// redistributions by a module's parallel style, and collectives inside an
/// operator that are not redistributions (loss_parallel, norms, batch
/// statistics). Contexts of a rank nest, and the innermost applies. A context
/// applies on every thread that works for the rank, so a backward pass inside a
/// context is checked, too. A context adds no cost to operators without
/// redistributions.
///
/// Python: torch.distributed.tensor._utils.ExplicitRedistributionContext.
class DTENSOR_API ExplicitRedistributionContext {
 public:
  explicit ExplicitRedistributionContext(
      const ExplicitRedistributionOptions& options = {});
  ~ExplicitRedistributionContext();
  ExplicitRedistributionContext(const ExplicitRedistributionContext&) = delete;
  ExplicitRedistributionContext& operator=(
      const ExplicitRedistributionContext&) = delete;

  /// Returns the options of this context.
  const ExplicitRedistributionOptions& options() const {
    return options_;
  }
  /// Throws RuntimeError with `text`, or warns, depending on the mode.
  void report(const std::string& where, const std::string& text);

 private:
  ExplicitRedistributionOptions options_;
  ExplicitRedistributionContext* outer_;
  std::set<std::string> warned_;
};

} // namespace dtensor
