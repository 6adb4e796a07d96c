// SPDX-License-Identifier: BSD-3-Clause
#include "arguments.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace dtensor::property {
namespace {

using SizesList = std::vector<std::vector<int64_t>>;

int64_t size(Random& random) {
  static const std::vector<int64_t> sizes = {0, 1, 1, 2, 3, 4, 4, 5, 6, 6, 8};
  return random.one_of(sizes);
}

std::vector<int64_t> shape(Random& random, int64_t ndim) {
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < ndim; ++d) {
    sizes.push_back(size(random));
  }
  return sizes;
}

// Of the same shape, or one that broadcasts to it.
std::vector<int64_t> broadcastable(std::vector<int64_t> sizes, Random& random) {
  if (random.chance(60)) {
    return sizes;
  }
  const auto drop = random.below(static_cast<int64_t>(sizes.size()) + 1);
  sizes.erase(sizes.begin(), sizes.begin() + drop);
  for (auto& s : sizes) {
    s = random.chance(40) ? 1 : s;
  }
  return sizes;
}

// Families whose operands have shapes that depend on each other.
SizesList related_shapes(const std::string& name, Random& r) {
  const auto b = size(r), m = size(r), k = size(r), n = size(r);
  static const std::map<std::string, int> family = {
      {"mm", 0},
      {"bmm", 1},
      {"addmm", 2},
      {"baddbmm", 3},
      {"matmul", 4},
      {"linear", 5},
      {"dot", 6},
      {"mv", 7},
      {"addmv", 8},
      {"addbmm", 9},
      {"vdot", 6},
      {"addr", 10},
      {"embedding", 11},
      {"native_layer_norm", 12},
      {"layer_norm", 12},
      {"rms_norm", 13},
      {"native_group_norm", 14},
      {"index_select", 15},
      {"gather", 16},
      {"index_add", 17},
      {"index_copy", 17},
      {"scatter", 18},
      {"scatter_add", 18},
      {"scaled_dot_product_attention", 19},
      {"take_along_dim", 16},
      {"outer", 20},
      {"ger", 20},
      {"inner", 21},
      {"nll_loss_forward", 22},
      {"nll_loss", 22},
      {"cross_entropy_loss", 22},
      {"masked_select", 23},
      {"cdist", 24},
      {"_fused_rms_norm", 13},
      {"chain_matmul", 0},
      {"bilinear", 25},
      {"group_norm", 14},
      {"batch_norm", 26},
      {"native_batch_norm", 26},
      {"_native_batch_norm_legit", 26}};
  const auto found = family.find(name);
  switch (found == family.end() ? -1 : found->second) {
    case 0:
      return {{m, k}, {k, n}};
    case 1:
      return {{b, m, k}, {b, k, n}};
    case 2:
      return {broadcastable({m, n}, r), {m, k}, {k, n}};
    case 3:
      return {broadcastable({b, m, n}, r), {b, m, k}, {b, k, n}};
    case 4:
      return r.chance(50) ? SizesList{{b, m, k}, {k, n}}
          : r.chance(50)  ? SizesList{{m, k}, {k, n}}
                          : SizesList{{b, m, k}, {b, k, n}};
    case 5:
      return {
          r.chance(50) ? std::vector<int64_t>{b, m, k}
                       : std::vector<int64_t>{m, k},
          {n, k},
          {n}};
    case 6:
    case 21:
      return {{k}, {k}};
    case 7:
      return {{m, k}, {k}};
    case 8:
      return {{m}, {m, k}, {k}};
    case 9:
      return {{m, n}, {b, m, k}, {b, k, n}};
    case 10:
      return {{m, n}, {m}, {n}};
    case 11:
      return {{7, k}, {m, n}};
    case 12:
      return {{b, m, k}, {k}, {k}};
    case 13:
      return {{b, m, k}, {k}};
    case 14:
      return {{b, 4, k}, {4}, {4}};
    case 15:
      return {{6, m}, {k}};
    case 16:
      return {{6, 6}, {m, std::min<int64_t>(n, 6)}};
    case 17:
      return {{6, 6}, {6}, {6, 6}};
    case 18:
      return {{6, 6}, {4, 5}, {5, 6}};
    case 19:
      return {{b, 4, m, k}, {b, 4, n, k}, {b, 4, n, k}};
    case 20:
      return {{m}, {n}};
    case 22:
      return {{m, 5}, {m}, {5}};
    case 26:
      return {{b, 4, k}, {4}, {4}, {4}, {4}};
    default:
      return {};
  }
}

bool is_index(const std::string& name) {
  return name == "index" || name == "indices" || name == "target";
}

at::ScalarType
dtype_of(const std::string& op, const std::string& argument, Random& random) {
  static const std::set<std::string> integer_ops = {
      "bitwise_and",
      "bitwise_or",
      "bitwise_xor",
      "bitwise_not",
      "bitwise_left_shift",
      "bitwise_right_shift",
      "gcd",
      "lcm",
      "__and__",
      "__or__",
      "__xor__",
      "__lshift__",
      "__rshift__"};
  if (is_index(argument) || integer_ops.count(op)) {
    return at::kLong;
  }
  if (argument == "mask" || argument == "condition") {
    return at::kBool;
  }
  return random.chance(6) ? at::kLong : at::kDouble;
}

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

// Another shape of as many elements.
std::vector<int64_t> other_shape(const at::Tensor& t, Random& random) {
  if (t.numel() == 0) {
    return t.sizes().vec();
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

bool is_tensor(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(
      *c10::OptionalType::create(c10::TensorType::get()));
}

bool is_tensor_list(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
}

} // namespace

std::vector<Operand> draw_operands(
    const c10::FunctionSchema& schema,
    Random& random) {
  auto op = schema.operator_name().name.substr(6);
  if (op.back() == '_' && op.rfind("__", 0) != 0) {
    op.pop_back();
  }
  const auto related = related_shapes(op, random);
  const auto base = shape(random, random.below(4));
  std::vector<Operand> operands;
  for (const auto& argument : schema.arguments()) {
    if (is_tensor_list(argument)) {
      const auto count = 1 + random.below(3);
      for (int64_t i = 0; i < count; ++i) {
        operands.push_back({base, at::kDouble});
      }
    } else if (is_tensor(argument)) {
      const auto at = operands.size();
      operands.push_back(
          {at < related.size() ? related[at]
               : at == 0       ? base
                               : broadcastable(base, random),
           dtype_of(op, argument.name(), random)});
    }
  }
  return operands;
}

at::Tensor full_operand(const Operand& operand, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  if (operand.dtype == at::kDouble) {
    return at::rand(operand.sizes, generator, at::kDouble) * 0.8 + 0.1;
  }
  const auto high = operand.dtype == at::kBool ? 2 : 5;
  return at::randint(0, high, operand.sizes, generator, at::kLong)
      .to(operand.dtype);
}

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

} // namespace dtensor::property
