// SPDX-License-Identifier: BSD-3-Clause
#include "call.h"

#include <ATen/core/enum_tag.h>
#include <ATen/ops/ones_like.h>
#include <dtensor/ops/path/stack_impl.h>

#include <set>

namespace dtensor::randomized {
namespace {

constexpr size_t kFormsOfAnOperator = 8;

std::string name_of(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name
                                    : name.name + "." + name.overload_name;
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// True if the arguments of `form` without its outs equal those of `schema`.
bool takes_same(
    const c10::FunctionSchema& form,
    const c10::FunctionSchema& schema) {
  size_t i = 0;
  const auto& arguments = schema.arguments();
  for (const auto& argument : form.arguments()) {
    if (argument.is_out()) {
      continue;
    }
    if (i == arguments.size() || arguments[i].name() != argument.name() ||
        *arguments[i].type() != *argument.type()) {
      return false;
    }
    ++i;
  }
  return i == arguments.size();
}

bool is_functional(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (writes(argument)) {
      return false;
    }
  }
  return true;
}

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

bool has_outs(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return !arguments.empty() && arguments.back().is_out();
}

// Returns the in-place and out= forms of a functional operator: op_.overload,
// op.out and op.overload_out.
std::vector<c10::OperatorHandle> forms_of(const c10::OperatorHandle& op) {
  std::vector<c10::OperatorHandle> forms;
  const auto& schema = op.schema();
  if (!is_functional(schema)) {
    return forms;
  }
  auto in_place = schema.operator_name();
  in_place.name += "_";
  const auto found = c10::Dispatcher::singleton().findSchema(in_place);
  if (found && takes_same(found->schema(), schema)) {
    forms.push_back(*found);
  }
  for (const auto& other : overloads().at(schema.name())) {
    if (has_outs(other.schema()) && takes_same(other.schema(), schema)) {
      forms.push_back(other);
    }
  }
  return forms;
}

} // namespace

std::string Call::name() const {
  return name_of(op);
}

torch::jit::Stack with_tensors(
    c10::ArrayRef<c10::IValue> values,
    const std::function<at::Tensor(const at::Tensor&, size_t)>& map) {
  torch::jit::Stack stack(values.begin(), values.end());
  detail::map_tensors(stack.data(), stack.size(), map);
  return stack;
}

std::map<std::string, std::vector<Call>> calls_of(
    const std::vector<Sample>& samples) {
  std::map<std::string, std::vector<Call>> calls;
  const auto add = [&](const c10::OperatorHandle& op,
                       const Sample& sample,
                       bool is_out_form,
                       size_t limit) {
    auto& list = calls[name_of(op)];
    if (list.size() < limit && compared_of(op) != Compared::kNothing) {
      list.push_back({op, sample.arguments, is_out_form, list.size(), false});
    }
  };
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& sample : samples) {
    add(dispatcher.findSchemaOrThrow(
            sample.name.c_str(), sample.overload.c_str()),
        sample,
        false,
        samples.size());
  }
  for (const auto& sample : samples) {
    const auto op = dispatcher.findSchemaOrThrow(
        sample.name.c_str(), sample.overload.c_str());
    for (const auto& form : forms_of(op)) {
      add(form, sample, has_outs(form.schema()), kFormsOfAnOperator);
    }
  }
  return calls;
}

void add_outs(Call& call) {
  if (!call.is_out_form) {
    return;
  }
  const auto& form = call.op.schema();
  for (const auto& op : overloads().at(form.name())) {
    if (has_outs(op.schema()) || !takes_same(form, op.schema())) {
      continue;
    }
    call.arguments = with_tensors(
        call.arguments, [](const at::Tensor& t, size_t) { return t.detach(); });
    auto stack = with_tensors( // other calls use the same tensors
        call.arguments,
        [](const at::Tensor& t, size_t) { return t.clone(); });
    op.callBoxed(&stack);
    for (const auto& result : stack) {
      call.arguments.emplace_back(
          result.isTensor() && result.toTensor().defined()
              ? c10::IValue(at::ones_like(
                    result.toTensor(), at::MemoryFormat::Contiguous))
              : result);
    }
    call.is_out_form = false;
    return;
  }
}

bool is_random(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

Compared compared_of(const c10::OperatorHandle& op) {
  static const std::set<std::string> shapes_only = {
      // LibTorch reduces only the first element, because it does not resize
      // `out`.
      "aten::binary_cross_entropy.out",
      // LibTorch's own implementations return an unwritten `out`.
      "aten::fft_ihfft2.out",
      "aten::fft_ihfftn.out",
      // Uninitialized results.
      "aten::empty_like",
      "aten::empty_permuted",
      "aten::empty_strided",
      "aten::new_empty",
      "aten::new_empty_strided",
      "aten::resize_",
      "aten::resize",
      "aten::resize_as_",
      "aten::resize_as"};
  static const std::set<std::string> senseless = {
      "aten::data_ptr",    // a memory address
      "aten::as_strided_", // strides of memory that a DTensor does not have
      "aten::_reshape_alias"};
  const auto& name = op.schema().name();
  if (senseless.count(name) != 0) {
    return Compared::kNothing;
  }
  return shapes_only.count(name) != 0 || shapes_only.count(name_of(op)) != 0 ||
          is_random(op)
      ? Compared::kShapes
      : Compared::kAll;
}

} // namespace dtensor::randomized
