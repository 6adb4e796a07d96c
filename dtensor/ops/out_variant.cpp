// SPDX-License-Identifier: BSD-3-Clause
// op.out(..., out) is op(...) whose results are copied into `out`, in the
// layout that `out` has. Where LibTorch has no such op, and the inputs are
// replicated, every rank computes the whole of `out` before it copies its part.
#include <dtensor/ops/variants_impl.h>

#include <dtensor/comm/owner_impl.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/replicated_impl.h>
#include <dtensor/ops/stack_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy.h>

#include <map>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

using Overloads = std::map<std::string, std::vector<c10::OperatorHandle>>;

const Overloads& overloads() {
  static const Overloads by_name = [] {
    Overloads all;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      if (auto op = dispatcher.findSchema(name)) {
        all[name.name].push_back(*op);
      }
    }
    return all;
  }();
  return by_name;
}

bool is_out(const c10::Argument& argument) {
  return argument.is_out();
}

// The arguments of `out_schema` without the outs are those of `schema`.
bool computes_same(
    const c10::FunctionSchema& out_schema,
    const c10::FunctionSchema& schema) {
  size_t i = 0;
  const auto& arguments = schema.arguments();
  for (const auto& argument : out_schema.arguments()) {
    if (is_out(argument)) {
      continue;
    }
    if (i == arguments.size() || arguments[i].name() != argument.name() ||
        *arguments[i].type() != *argument.type() || is_out(arguments[i]) ||
        arguments[i].alias_info() != nullptr) {
      return false;
    }
    ++i;
  }
  return i == arguments.size();
}

// The plain operator gives `out` new memory if it has another shape.
void give_size(const at::Tensor& out, at::IntArrayRef sizes) {
  const auto& old = *spec_of(out);
  auto spec = Spec::make(old.mesh(), old.placements(), sizes, old.dtype());
  auto local = local_of(out).new_empty(spec->local_sizes());
  rewrap(out, std::move(local), std::move(spec));
}

void copy_into(
    const std::string& name,
    const at::Tensor& out,
    const at::Tensor& result) {
  DTENSOR_CHECK(
      is_dtensor(out),
      name,
      "out is a plain tensor, the result ",
      *spec_of(result),
      ". Pass a DTensor as out.");
  if (out.sizes() != result.sizes() && spec_of(out)->is_replicated()) {
    give_size(out, result.sizes());
  }
  DTENSOR_CHECK(
      out.sizes() == result.sizes(),
      name,
      "out cannot be resized: it is ",
      *spec_of(out),
      ", the result ",
      *spec_of(result),
      ". Pass an out of the shape of the result.");
  at::Tensor target = out;
  target.copy_(result);
}

std::vector<at::Tensor> tensors_of(const torch::jit::Stack& values) {
  std::vector<at::Tensor> found;
  visit_tensors(values, [&](const at::Tensor& t, size_t, int) {
    found.push_back(t);
  });
  return found;
}

void copy_all(
    const c10::OperatorHandle& op,
    const std::vector<at::Tensor>& results,
    const torch::jit::Stack& outs) {
  const auto targets = tensors_of(outs);
  DTENSOR_CHECK_VALUE(
      targets.size() == results.size(),
      op.schema().name(),
      "got ",
      targets.size(),
      " tensors to write ",
      results.size(),
      " results into. Pass one for each.");
  for (size_t i = 0; i < targets.size(); ++i) {
    copy_into(op.schema().name(), targets[i], results[i]);
  }
}

} // namespace

std::optional<c10::OperatorHandle> functional_of_out(
    const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto it = overloads().find(schema.name());
  if (it == overloads().end()) {
    return std::nullopt;
  }
  for (const auto& other : it->second) {
    if (computes_same(schema, other.schema())) {
      return other;
    }
  }
  return std::nullopt;
}

void run_out_variant(
    const c10::OperatorHandle& op,
    const c10::OperatorHandle& functional,
    torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto base = stack->size() - arguments.size();
  torch::jit::Stack inputs;
  torch::jit::Stack outs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    (is_out(arguments[i]) ? outs : inputs).push_back((*stack)[base + i]);
  }
  torch::jit::drop(*stack, arguments.size());
  functional.callBoxed(&inputs);
  copy_all(op, tensors_of(inputs), outs);
  if (!op.schema().returns().empty()) {
    stack->insert(stack->end(), outs.begin(), outs.end());
  }
}

bool inputs_are_replicated(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> args) {
  bool all = true;
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
    all &= is_out(schema.arguments()[arg])
        ? is_dtensor(t)
        : is_dtensor(t) ? spec_of(t)->is_replicated() : t.numel() == 1;
  });
  return all;
}

void run_out_on_replicated(const OpInfo& info, torch::jit::Stack* stack) {
  const auto& arguments = info.op.schema().arguments();
  const auto args = last_args(*stack, info.num_args).vec();
  torch::jit::drop(*stack, info.num_args);
  torch::jit::Stack local(args);
  torch::jit::Stack outs;
  std::vector<at::Tensor> results;
  SpecPtr like;
  for (size_t i = 0; i < args.size(); ++i) {
    const bool out = is_out(arguments[i]);
    if (out) {
      outs.push_back(args[i]);
    }
    map_tensors(&local[i], 1, [&](const at::Tensor& t, size_t) {
      if (is_dtensor(t)) {
        like = spec_of(t);
        check_mine(info.name, *like);
      }
      const auto& part = is_dtensor(t) ? local_of(t) : t;
      return out ? results.emplace_back(part.new_empty({0})) : part;
    });
  }
  if (like->mesh().contains_this_rank()) {
    const SameOnAllRanks no_draws(info.name);
    info.op.callBoxed(&local);
    for (auto& t : results) {
      t = wrap(t, replicated_spec(*like, t));
    }
    copy_all(info.op, results, outs);
  }
  if (!info.op.schema().returns().empty()) {
    stack->insert(stack->end(), outs.begin(), outs.end());
  }
}

} // namespace dtensor::detail
