// SPDX-License-Identifier: BSD-3-Clause
// ExplicitRedistributionContext: operators that would redistribute an operand
// by themselves are an error, or a warning.
//
//   const ExplicitRedistributionContext only_explicit;
//   at::mm(x, w);    // x S(1), w R: an error that names x and its layouts
//
// docs/concepts/experimental.md says what counts as implicit.
#pragma once

#include <dtensor/api.h>

#include <cstdint>
#include <set>
#include <string>

namespace dtensor {

/// Options of an ExplicitRedistributionContext.
struct ExplicitRedistributionOptions {
  /// An error, or a warning.
  enum class Mode : uint8_t { kRaise, kWarn };

  /// False: inside of another one, allow everything again.
  bool enable = true;
  /// Also what sends nothing, as taking a shard of what is replicated.
  bool strict = false;
  /// kWarn: a warning instead, once in a scope for equal texts.
  Mode mode = Mode::kRaise;
};

/// While it lives, an operator of this rank that needs an operand in another
/// layout throws RuntimeError before it communicates, or warns: it names the
/// module, the operand and both layouts. redistribute(), full_tensor(),
/// local_map() and the boundaries of module styles are explicit, and so are the
/// collectives of an operator that are no redistribution (those of
/// loss_parallel, norms, batch statistics). The scopes of a rank nest, the
/// innermost counts, wherever a thread works for the rank: a backward pass
/// inside of one is watched, too. Costs nothing where nothing is redistributed.
/// Python: torch.distributed.tensor._utils.ExplicitRedistributionContext.
class DTENSOR_API ExplicitRedistributionContext {
 public:
  explicit ExplicitRedistributionContext(
      const ExplicitRedistributionOptions& options = {});
  ~ExplicitRedistributionContext();
  ExplicitRedistributionContext(const ExplicitRedistributionContext&) = delete;
  ExplicitRedistributionContext& operator=(
      const ExplicitRedistributionContext&) = delete;

  const ExplicitRedistributionOptions& options() const {
    return options_;
  }
  /// Throws or warns of what stands in `text`.
  void report(const std::string& where, const std::string& text);

 private:
  ExplicitRedistributionOptions options_;
  ExplicitRedistributionContext* outer_;
  std::set<std::string> warned_;
};

} // namespace dtensor
