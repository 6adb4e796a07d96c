// SPDX-License-Identifier: BSD-3-Clause
// KernelArgs: arguments of a boxed call by their names in the schema, for
// kernels that replace a call completely.
//
//   void dist(KernelArgs& args) {
//     const auto difference = args.tensor("self") - args.tensor("other");
//     args.returns(at::norm(difference, args.at("p").toScalar()));
//   }
//   rules.kernel("dist", with_args(dist));
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/strategy.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {

class KernelArgs {
 public:
  KernelArgs(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op),
        schema_(op.schema()),
        stack_(stack),
        base_(stack.size() - op.schema().arguments().size()) {}

  /// Return the operator name for messages, with its overload and without:
  /// "aten::random_.to" and "aten::random_".
  std::string name() const {
    return name_of(schema_.operator_name());
  }
  const std::string& base_name() const {
    return schema_.name();
  }

  const c10::OperatorHandle& op() const {
    return op_;
  }
  /// Returns the arguments in schema order.
  c10::ArrayRef<c10::IValue> all() const {
    return c10::ArrayRef<c10::IValue>(stack_).slice(base_, count());
  }
  /// Returns the number of arguments.
  size_t count() const {
    return schema_.arguments().size();
  }
  /// Returns the stack of the call. After run_operator(), it ends with the
  /// results, and the functions that look up arguments must not be called.
  torch::jit::Stack& stack() const {
    return stack_;
  }
  /// Runs the operator itself on the arguments, and pushes its results.
  void run_operator() {
    op_.callBoxed(stack_);
  }
  /// Runs the operator, which has one result, and pops the result.
  at::Tensor compute() {
    run_operator();
    return torch::jit::pop(stack_).toTensor();
  }

  /// Returns the position in the schema; -1 if there is no such argument.
  int find(std::string_view argument) const {
    return schema_.argumentIndexWithName(argument).value_or(-1);
  }

  const c10::IValue& at(int position) const {
    return stack_[base_ + static_cast<size_t>(position)];
  }
  const c10::IValue& at(std::string_view argument) const {
    const int position = find(argument);
    TORCH_INTERNAL_ASSERT(
        position >= 0, schema_, " has no ", std::string(argument));
    return at(position);
  }

  /// Returns an argument; None if there is no such argument.
  c10::IValue get(std::string_view argument) const {
    const int position = find(argument);
    return position < 0 ? c10::IValue() : at(position);
  }

  bool is_none(std::string_view argument) const {
    return at(argument).isNone();
  }
  /// Returns a tensor argument; undefined for None.
  at::Tensor tensor(std::string_view argument) const {
    const auto& value = at(argument);
    return value.isNone() ? at::Tensor() : value.toTensor();
  }
  std::optional<at::Tensor> optional_tensor(std::string_view argument) const {
    auto t = tensor(argument);
    return t.defined() ? std::optional(std::move(t)) : std::nullopt;
  }
  double real(std::string_view argument) const {
    return at(argument).toScalar().toDouble();
  }
  int64_t integer(std::string_view argument) const {
    return at(argument).toInt();
  }
  /// Returns a bool argument; false for None.
  bool flag(std::string_view argument) const {
    const auto& value = at(argument);
    return !value.isNone() && value.toBool();
  }

  /// Replaces an argument on the stack.
  void set(std::string_view argument, c10::IValue value) {
    const int position = find(argument);
    TORCH_INTERNAL_ASSERT(
        position >= 0, schema_, " has no ", std::string(argument));
    stack_[base_ + static_cast<size_t>(position)] = std::move(value);
  }

  /// Replaces each tensor by map(const at::Tensor&, const char* argument).
  template <class Map>
  void map_tensors(const Map& map) {
    for (size_t i = 0; i < count(); ++i) {
      const char* argument = schema_.arguments()[i].name().c_str();
      detail::map_tensors(
          &stack_[base_ + i], 1, [&](const at::Tensor& t, size_t) {
            return map(t, argument);
          });
    }
  }

  /// Pops the arguments, or the operator's results, and pushes the results.
  /// Call this function once, at the end.
  template <class... Results>
  void returns(Results&&... results) {
    torch::jit::drop(stack_, stack_.size() - base_);
    torch::jit::push(stack_, std::forward<Results>(results)...);
  }

 private:
  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack& stack_;
  size_t base_;
};

/// Returns `kernel(KernelArgs&)` in the form of rules, which takes operator and
/// stack.
template <class Kernel>
DTensorKernel with_args(Kernel kernel) {
  return [kernel = std::move(kernel)](
             const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    KernelArgs args(op, *stack);
    kernel(args);
  };
}

/// A local tensor and its layout.
struct LocalTensor {
  at::Tensor local;
  SpecPtr spec;
};

/// Redistributes `t`, the DTensor in argument `argument` of operator `op`, and
/// reports the redistribution. Records no gradient.
LocalTensor redistributed(
    std::string_view op,
    const char* argument,
    const at::Tensor& t,
    PlacementsRef to);

/// Returns `t`, an operand of a kernel, as a replicated local tensor, and
/// reports the redistribution. Throws on ranks outside the mesh.
at::Tensor replicated_argument(
    const KernelArgs& args,
    const at::Tensor& t,
    const char* argument);

/// Runs an operator on replicated arguments, for a kernel whose results depend
/// on all values. The results are replicated. Throws as replicated_argument()
/// does, and for operands on different meshes.
void call_on_replicated(KernelArgs& args);

} // namespace dtensor::detail
