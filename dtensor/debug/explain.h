// SPDX-License-Identifier: BSD-3-Clause
// explain: which layouts an operator could take, what each would cost, which
// one it takes and why. Without data, for layouts alone:
//
//   std::cout << explain("mm", {a.spec(), b.spec()});
//   // aten::mm on (tp=2), by its rule
//   //   operand  layout          becomes  by     bytes
//   //   self     f32[8, 6] S(1)                      0
//   //   mat2     f32[6, 4] R     S(0)     slice      0
//   //   tp  inputs -> results    bytes  changed
//   //       S(0) R -> S(0)          48        1  more bytes
//   //   *   S(1) S(0) -> P(sum)      0        1  fewest bytes
//   //       ...
//   //   result  f32[8, 4] P(sum)
//
// or of all operators on DTensors that a program calls:
//
//   ExplainMode mode;
//   model->forward(x).sum().backward();
//   std::cout << mode;
//
// Nothing is different for being explained, and nothing listens while no mode
// lives. How layouts are chosen: docs/concepts/operators.md.
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

/// What decides the layouts of an operator.
enum class DecidedBy : uint8_t {
  kRule,      // strategies, of which each mesh dimension takes one
  kViewRule,  // a view: its result's layout follows from its input's
  kKernel,    // nothing: a kernel written for DTensors computes it
  kOperators, // nothing: it is made of other operators, which are in `calls`
  kWhole,     // it has no rule: on replicated operands every rank computes all
  kMadeWhole, // the same in a scope of on_missing_rule(), on any operands
  kNobody,    // it is an error
};

/// "its rule", "a kernel of its own", ...
DTENSOR_API std::string_view to_string(DecidedBy by);

/// One strategy that a mesh dimension could take.
struct ExplainedStrategy {
  Strategy strategy;
  /// By which strategies are compared: what a rank would send to bring this
  /// mesh dimension of all inputs there; infinite where there is no way. A
  /// partial sum counts as an all-reduce also where it is to be cut, and a cut
  /// as an all-gather also where it is to be partial, so less may be sent.
  double bytes = 0;
  /// Inputs that would get another placement: the second thing compared.
  int changes = 0;
  bool taken = false;
  /// Why it is taken or not: "fewest bytes", "more bytes", ...
  std::string why;
  friend bool operator==(const ExplainedStrategy&, const ExplainedStrategy&) =
      default;
};

/// The strategies of one mesh dimension, as the rule lists them; "everything
/// replicated" is last.
struct ExplainedMeshDim {
  std::string mesh_dim;
  std::vector<ExplainedStrategy> strategies;
  friend bool operator==(const ExplainedMeshDim&, const ExplainedMeshDim&) =
      default;
};

/// A tensor among the arguments; lists are flattened.
struct ExplainedOperand {
  std::string name; // in the schema; "tensors[1]" in a list
  /// As it comes. What a module's style makes of the input comes so; a plain
  /// tensor of one element is replicated.
  SpecPtr spec;
  bool is_plain = false;
  /// Its layout in the local call; null: the one that it has.
  SpecPtr becomes;
  /// The way there, and the bytes that a rank sends on it.
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
  /// What else there is to say: how it is run, why it is an error.
  std::string note;
  bool backward = false;
  /// Full name of the styled module whose parameter it is called with, if any.
  std::string module;
  std::vector<ExplainedOperand> operands;
  /// One for each mesh dimension; none unless `by` is kRule.
  std::vector<ExplainedMeshDim> mesh_dims;
  /// Layouts of the results, null for those that are no DTensors. Of calls that
  /// a program made: those that came out.
  std::vector<SpecPtr> results;
  /// The collectives of this rank during the call, without those of `calls`.
  CommTotal communicated;
  /// How often a program called it so, one call after the other or not.
  int64_t count = 1;
  /// The operators on DTensors that it called.
  std::vector<ExplainedCall> calls;
  friend bool operator==(const ExplainedCall&, const ExplainedCall&) = default;
};

/// What would happen to a call of `op` ("mm", "add.Tensor") with tensors of
/// these layouts, in the order of its schema. They may be on a mesh without
/// ranks, as parse_spec() makes it; nothing is computed. `arguments` are the
/// others by name; those left out have their defaults:
///
///   explain("sum.dim_IntList", {x}, {{"dim", std::vector<int64_t>{0}}});
///
/// What is an error in a program is explained too (DecidedBy::kNobody). Throws
/// ValueError for an operator or an argument that LibTorch does not have, for
/// other than as many layouts as it takes tensors, and for an argument that is
/// missing. No Python counterpart.
DTENSOR_API ExplainedCall explain(
    std::string_view op,
    const std::vector<SpecPtr>& layouts,
    const std::map<std::string, c10::IValue>& arguments = {});

/// Explains the operators on DTensors that this rank calls while it lives, in
/// the forward and in the backward pass. Modes nest. Operators take some
/// hundred microseconds longer. No Python counterpart.
class DTENSOR_API ExplainMode {
 public:
  ExplainMode();
  ~ExplainMode();
  ExplainMode(const ExplainMode&) = delete;
  ExplainMode& operator=(const ExplainMode&) = delete;

  /// Those that no other one called, in the order in which they first ended.
  /// Calls of which all is equal are one.
  const std::vector<ExplainedCall>& calls() const;
  /// The collectives of this rank outside of them: redistribute(), and what
  /// nodes of a backward pass do between operators.
  const CommTotal& communicated_outside() const;
  /// Forgets them.
  void reset();

 private:
  std::unique_ptr<detail::Explainer> explainer_;
};

/// A paragraph, as above, those of the operators that it called below it.
DTENSOR_API std::string to_string(const ExplainedCall& call);
/// A paragraph for each call, and a line for the collectives outside of them.
DTENSOR_API std::string to_string(const ExplainMode& mode);
/// The same texts.
DTENSOR_API std::ostream& operator<<(std::ostream& os, const ExplainedCall& c);
DTENSOR_API std::ostream& operator<<(std::ostream& os, const ExplainMode& m);

} // namespace dtensor
