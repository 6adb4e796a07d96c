// SPDX-License-Identifier: BSD-3-Clause
#include "arguments.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>

namespace dtensor::randomized {
namespace {

std::vector<int64_t> permutation(int64_t ndim, Random& random) {
  std::vector<int64_t> dims(static_cast<size_t>(ndim));
  std::iota(dims.begin(), dims.end(), 0);
  for (size_t i = dims.size(); i > 1; --i) {
    std::swap(
        dims[i - 1],
        dims[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  }
  return dims;
}

// Returns sizes with heads of 64 features split, or with split heads merged, or
// nothing if there are none.
std::vector<int64_t> other_heads(at::IntArrayRef sizes, Random& random) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    auto other = sizes.vec();
    const auto here = other.begin() + static_cast<int64_t>(d);
    if (d > 0 && (sizes[d] == 64 || sizes[d] == 192) && random.chance(70)) {
      *(here - 1) *= *here;
      other.erase(here);
      return other;
    }
    if (sizes[d] > 64 && sizes[d] % 64 == 0) {
      const int64_t unit = sizes[d] % 192 == 0 && random.chance(30) ? 192 : 64;
      *here /= unit;
      other.insert(here + 1, unit);
      return other;
    }
  }
  return {};
}

// Returns another shape with the same number of elements.
std::vector<int64_t> other_shape(const at::Tensor& t, Random& random) {
  if (t.numel() == 0) {
    return t.sizes().vec();
  }
  const auto heads = other_heads(t.sizes(), random);
  if (!heads.empty() && random.chance(80)) {
    return heads;
  }
  std::vector<int64_t> sizes;
  auto left = t.numel();
  while (left > 1 && sizes.size() < 3) {
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= left; ++d) {
      if (left % d == 0) {
        divisors.push_back(d);
      }
    }
    sizes.push_back(random.one_of(divisors));
    left /= sizes.back();
  }
  if (left > 1 || sizes.empty()) {
    sizes.push_back(left);
  }
  if (random.chance(20)) {
    sizes[static_cast<size_t>(
        random.below(static_cast<int64_t>(sizes.size())))] = -1;
  }
  return sizes;
}

std::vector<int64_t> ints(
    const std::string& op,
    const std::string& name,
    const at::Tensor& self,
    Random& random) {
  const auto ndim = self.defined() ? self.dim() : 0;
  if (op == "permute" || op == "permute_copy") {
    return permutation(ndim, random);
  }
  if (name == "normalized_shape") {
    return ndim == 0 ? std::vector<int64_t>{}
                     : std::vector<int64_t>{self.size(-1)};
  }
  if (name == "split_sizes" && ndim > 0) {
    const auto first = random.below(self.size(0) + 1);
    return {first, self.size(0) - first};
  }
  if (op == "expand" || op == "expand_copy" || op == "broadcast_to") {
    auto sizes = self.sizes().vec();
    for (auto& s : sizes) {
      s = s == 1 && random.chance(60) ? 4 : random.chance(20) ? -1 : s;
    }
    if (random.chance(40)) {
      sizes.insert(sizes.begin(), 3);
    }
    return sizes;
  }
  if (name == "size" || name == "shape" || name == "sizes") {
    return other_shape(self, random);
  }
  if (name == "pad") {
    return {1, 0};
  }
  auto dims = permutation(ndim, random); // dims, shifts, repeats, ...
  dims.resize(static_cast<size_t>(random.below(ndim + 1)));
  if (name == "repeats" || name == "shifts") {
    dims.assign(static_cast<size_t>(ndim), 1 + random.below(2));
  }
  return dims;
}

int64_t
number(const std::string& name, const at::Tensor& self, Random& random) {
  const auto ndim = std::max<int64_t>(self.defined() ? self.dim() : 0, 1);
  if (name.rfind("dim", 0) == 0 || name == "axis" || name == "start_dim" ||
      name == "end_dim" || name == "source" || name == "destination") {
    return random.below(2 * ndim) - ndim;
  }
  if (name == "step" || name == "chunks" || name == "split_size" ||
      name == "sections" || name == "size" || name == "k") {
    return 1 + random.below(3);
  }
  if (name == "reduction" || name == "n") {
    return random.below(3);
  }
  if (name == "N" || name == "C") { // of group_norm
    return self.dim() > 1 ? self.size(name == "N" ? 0 : 1) : 0;
  }
  if (name == "HxW") {
    return self.dim() > 2 ? self.size(2) : 1;
  }
  if (name == "group" || name == "num_groups") {
    return 1 + random.below(2);
  }
  if (name == "ignore_index") {
    return -100;
  }
  return random.below(6) - 1; // start, end, index, diagonal, ...
}

c10::IValue draw_argument(
    const std::string& op,
    const c10::Argument& argument,
    const at::Tensor& self,
    Random& random) {
  auto type = argument.type();
  const bool integer = self.defined() && !self.is_floating_point();
  if (type->kind() == c10::TypeKind::OptionalType) {
    type = type->castRaw<c10::OptionalType>()->getElementType();
    const bool keep = type->kind() == c10::TypeKind::DeviceObjType ||
        type->kind() == c10::TypeKind::GeneratorType ||
        argument.name() == "dtype" || argument.name() == "memory_format" ||
        argument.name() == "layout" || random.chance(40);
    if (keep) {
      return c10::IValue();
    }
  }
  switch (type->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (argument.name() == "dtype" || argument.name() == "layout" ||
          argument.name() == "memory_format") {
        break;
      }
      return number(argument.name(), self, random);
    case c10::TypeKind::BoolType: // no sparse gradients
      return argument.name().rfind("sparse", 0) != 0 && random.chance(50);
    case c10::TypeKind::NumberType:
      return integer
          ? c10::IValue(random.below(4))
          : c10::IValue(0.25 * static_cast<double>(1 + random.below(8)));
    case c10::TypeKind::FloatType:
      if (argument.default_value()) {
        break;
      }
      return 0.25 * static_cast<double>(1 + random.below(3));
    case c10::TypeKind::ListType:
      if (type->castRaw<c10::ListType>()->getElementType()->kind() ==
          c10::TypeKind::IntType) {
        return ints(op, argument.name(), self, random);
      }
      break;
    default:
      break;
  }
  if (argument.default_value()) {
    return *argument.default_value();
  }
  return c10::IValue();
}

} // namespace

torch::jit::Stack draw_arguments(
    const c10::FunctionSchema& schema,
    const std::vector<at::Tensor>& tensors,
    uint64_t variant) {
  Random random(variant);
  auto op = schema.operator_name().name.substr(6);
  torch::jit::Stack stack;
  size_t next = 0;
  size_t left_for_lists = tensors.size();
  for (const auto& argument : schema.arguments()) {
    left_for_lists -= is_tensor(argument) ? 1 : 0;
  }
  const auto self = tensors.empty() ? at::Tensor() : tensors[0];
  for (const auto& argument : schema.arguments()) {
    if (is_tensor_list(argument)) {
      std::vector<at::Tensor> list(
          tensors.begin() + static_cast<int64_t>(next),
          tensors.begin() + static_cast<int64_t>(next + left_for_lists));
      next += left_for_lists;
      stack.emplace_back(std::move(list));
    } else if (is_tensor(argument)) {
      stack.emplace_back(tensors[next++]);
    } else {
      stack.push_back(draw_argument(op, argument, self, random));
    }
  }
  return stack;
}

} // namespace dtensor::randomized
