// SPDX-License-Identifier: BSD-3-Clause
// explain: the layouts that an operator could use, their costs, the layouts
// that it uses, and the reason. Works on layouts alone, without data:
//
//   std::cout << explain("mm", {a.spec(), b.spec()});
//   // aten::mm on (tp=2), by its rule
//   //   operand  layout          becomes  by     bytes
//   //   self     f32[8, 6] S(1)                      0
//   //   mat2     f32[6, 4] R     S(0)     slice      0
//   //   tp  inputs -> results        us  changed
//   //       S(0) R -> S(0)       2.0048        1  takes longer
//   //   *   S(1) S(0) -> P(sum)       0        1  least time
//   //       ...
//   //   result  f32[8, 4] P(sum)
//
// ExplainMode explains all operators on DTensors that a program calls:
//
//   ExplainMode mode;
//   model->forward(x).sum().backward();
//   std::cout << mode;
//
// Explaining does not change results, and costs nothing while no mode exists.
// docs/concepts/operators.md describes the choice of layouts.
#pragma once

#include <dtensor/api.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/ops/strategy.h>
#include <dtensor/redistribute/plan.h>

#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor {

namespace detail {
class Explainer;
}

/// The mechanism that decides the layouts of an operator.
enum class DecidedBy : uint8_t {
  kRule,      // a rule: each mesh dimension takes one of its strategies
  kViewRule,  // a view rule: the result's layout follows from the input's
  kKernel,    // no decision: a kernel for DTensors computes the result
  kOperators, // no decision: it decomposes into the operators in `calls`
  kReplicatedOperands, // no rule, operands replicated: every rank computes the
                       // result
  kReplicatedFallback, // as kReplicatedOperands, on operands redistributed to
                       // Replicate: in an on_missing_rule() scope, or for an
                       // operator whose result's shape depends on values
  kUnsupported,        // unsupported: the call throws
};

/// Returns a description: "by its rule", "by its own kernel", ...
DTENSOR_API std::string_view to_string(DecidedBy by);

/// A strategy of the rule for one mesh dimension.
struct ExplainedStrategy {
  Strategy strategy;
  /// Modelled time of the call with this strategy and the chosen ones of the
  /// other mesh dimensions; infinity if impossible. The time is the sum of the
  /// redistributions of the inputs. On mesh dimensions that move an input, the
  /// sum includes the next collective of the results and duplicated work.
  double microseconds = 0;
  /// Number of inputs that would change their placement. Among strategies of
  /// equal time, the one with the fewest changes is taken.
  int changes = 0;
  bool taken = false;
  /// The reason why the strategy is taken or not: "least time", "takes longer",
  /// ...
  std::string why;
  friend bool operator==(const ExplainedStrategy&, const ExplainedStrategy&) =
      default;
};

/// The strategies of one mesh dimension, in the order of the rule; "everything
/// replicated" is last.
struct ExplainedMeshDim {
  std::string mesh_dim;
  std::vector<ExplainedStrategy> strategies;
  friend bool operator==(const ExplainedMeshDim&, const ExplainedMeshDim&) =
      default;
};

/// A tensor argument. Lists are flattened.
struct ExplainedOperand {
  std::string name; // schema name; "tensors[1]" in a list
  /// The layout before the decision, but after conversions by a module's style.
  /// A plain tensor with one element counts as replicated.
  SpecPtr spec;
  bool is_plain = false;
  /// The layout in the local call; null: unchanged.
  SpecPtr becomes;
  /// The redistribution to `becomes`, and the bytes that a rank sends in it.
  std::vector<Step> steps;
  double wire_bytes = 0;
  friend bool operator==(const ExplainedOperand&, const ExplainedOperand&) =
      default;
};

/// A call of one operator.
struct ExplainedCall {
  std::string name; // "aten::mm"
  std::string mesh; // "(tp=4)"
  DecidedBy by = DecidedBy::kRule;
  /// Further notes: how the operator runs, or the error.
  std::string note;
  bool backward = false;
  /// Full name of the module with a parallel style that owns a parameter among
  /// the operands, if any.
  std::string module;
  std::vector<ExplainedOperand> operands;
  /// The strategies of each mesh dimension; empty unless `by` is kRule.
  std::vector<ExplainedMeshDim> mesh_dims;
  /// Layouts of the results, null for results that are not DTensors. For a
  /// program's calls these are the actual layouts.
  std::vector<SpecPtr> results;
  /// The collectives of this rank during the call, without those in `calls`.
  CommTotal communicated;
  /// Number of equal calls that were merged, consecutive or not.
  int64_t count = 1;
  /// The operators on DTensors that this operator called.
  std::vector<ExplainedCall> calls;
  friend bool operator==(const ExplainedCall&, const ExplainedCall&) = default;
};

/// Predicts a call of `op` ("mm", "add.Tensor") on tensors with these layouts,
/// in the order of its schema. The layouts may be on a pure mesh
/// (layout/mesh.h), such as that of parse_spec(); nothing is computed.
/// `arguments` are the other arguments by name; omitted arguments have their
/// defaults:
///
///   explain("sum.dim_IntList", {x}, {{"dim", std::vector<int64_t>{0}}});
///
/// Calls that would throw in a program are explained too
/// (DecidedBy::kUnsupported). Throws ValueError for an operator or an argument
/// that LibTorch does not have, for a wrong number of layouts, and for a
/// missing argument. No Python counterpart.
DTENSOR_API ExplainedCall explain(
    std::string_view op,
    const std::vector<SpecPtr>& layouts,
    const std::map<std::string, c10::IValue>& arguments = {});

/// Scope that explains the operators on DTensors that this rank calls, in
/// forward and backward passes. Modes nest. An operator takes a few hundred
/// microseconds longer. No Python counterpart.
class DTENSOR_API ExplainMode {
 public:
  ExplainMode();
  ~ExplainMode();
  ExplainMode(const ExplainMode&) = delete;
  ExplainMode& operator=(const ExplainMode&) = delete;

  /// Returns the outermost calls, in the order in which they first completed.
  /// Equal calls are merged.
  const std::vector<ExplainedCall>& calls() const;
  /// Returns the collectives of this rank outside of operators: redistribute(),
  /// and nodes of a backward pass between operators.
  const CommTotal& communicated_outside() const;
  /// Clears all calls and counts.
  void reset();

 private:
  std::unique_ptr<detail::Explainer> explainer_;
};

/// Returns a paragraph as above, followed by those of the operators that this
/// operator called.
DTENSOR_API std::string to_string(const ExplainedCall& call);
/// Returns a paragraph per call, and a line for the collectives outside of
/// calls.
DTENSOR_API std::string to_string(const ExplainMode& mode);
/// Print the to_string() texts.
DTENSOR_API std::ostream& operator<<(std::ostream& os, const ExplainedCall& c);
DTENSOR_API std::ostream& operator<<(std::ostream& os, const ExplainMode& m);

} // namespace dtensor
