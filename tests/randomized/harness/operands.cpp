// SPDX-License-Identifier: BSD-3-Clause
#include "operands.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>

namespace dtensor::randomized {
namespace {

using Sizes = std::vector<int64_t>;
using SizesList = std::vector<Sizes>;

int64_t size(Random& random) {
  static const Sizes sizes = {0, 1, 1, 2, 3, 4, 4, 5, 6, 6, 8};
  return random.one_of(sizes);
}

Sizes shape(Random& random, int64_t ndim) {
  Sizes sizes;
  for (int64_t d = 0; d < ndim; ++d) {
    sizes.push_back(size(random));
  }
  return sizes;
}

// Returns shapes of heads with 64 features, merged or split. Views convert
// between these shapes.
Sizes shape_of_heads(Random& random) {
  static const SizesList shapes = {
      {2, 576},
      {2, 3, 384},
      {576, 2},
      {3, 192},
      {1, 2, 576},
      {2, 9, 64},
      {1, 2, 9, 64},
      {1, 6, 2, 64},
      {9, 64, 2},
      {3, 3, 192}};
  return random.one_of(shapes);
}

// Returns the same shape, or a shape that broadcasts to it.
Sizes broadcastable(Sizes sizes, Random& random) {
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

// Sizes from which shapes that depend on each other are built.
struct Dims {
  int64_t b, m, k, n;
  int64_t heads, key_heads;
};

Dims dims_of(bool has_heads, Random& r) {
  Dims dims{size(r), size(r), size(r), size(r), 4, 4};
  if (has_heads) {
    static const Sizes wide = {192, 384, 576};
    (r.chance(50) ? dims.k : dims.n) = r.one_of(wide);
    dims.heads = 9;
    dims.key_heads = r.chance(50) ? 3 : 9;
  }
  return dims;
}

using Shapes = SizesList (*)(const Dims&, Random&);
using Family = std::map<std::string, Shapes>;

SizesList matmul_shapes(const Dims& d, Random& r) {
  return r.chance(50) ? SizesList{{d.b, d.m, d.k}, {d.k, d.n}}
      : r.chance(50)  ? SizesList{{d.m, d.k}, {d.k, d.n}}
                      : SizesList{{d.b, d.m, d.k}, {d.b, d.k, d.n}};
}

SizesList linear_shapes(const Dims& d, Random& r) {
  return {
      r.chance(50) ? Sizes{d.b, d.m, d.k} : Sizes{d.m, d.k}, {d.n, d.k}, {d.n}};
}

SizesList attention_shapes(const Dims& d, Random&) {
  const auto size = d.heads == 9 ? 64 : d.k;
  const auto keys = d.heads == 9 ? 3 : d.n;
  return {
      {d.b, d.heads, d.m, size},
      {d.b, d.key_heads, keys, size},
      {d.b, d.key_heads, keys, size}};
}

const Family& products() {
  static const Shapes two = [](const Dims& d, Random&) {
    return SizesList{{d.m, d.k}, {d.k, d.n}};
  };
  static const Shapes vectors = [](const Dims& d, Random&) {
    return SizesList{{d.k}, {d.k}};
  };
  static const Shapes outer = [](const Dims& d, Random&) {
    return SizesList{{d.m}, {d.n}};
  };
  static const Family family = {
      {"mm", two},
      {"chain_matmul", two},
      {"bmm",
       [](const Dims& d, Random&) {
         return SizesList{{d.b, d.m, d.k}, {d.b, d.k, d.n}};
       }},
      {"addmm",
       [](const Dims& d, Random& r) {
         return SizesList{broadcastable({d.m, d.n}, r), {d.m, d.k}, {d.k, d.n}};
       }},
      {"baddbmm",
       [](const Dims& d, Random& r) {
         return SizesList{
             broadcastable({d.b, d.m, d.n}, r),
             {d.b, d.m, d.k},
             {d.b, d.k, d.n}};
       }},
      {"matmul", matmul_shapes},
      {"linear", linear_shapes},
      {"dot", vectors},
      {"vdot", vectors},
      {"inner", vectors},
      {"mv",
       [](const Dims& d, Random&) {
         return SizesList{{d.m, d.k}, {d.k}};
       }},
      {"addmv",
       [](const Dims& d, Random&) {
         return SizesList{{d.m}, {d.m, d.k}, {d.k}};
       }},
      {"addbmm",
       [](const Dims& d, Random&) {
         return SizesList{{d.m, d.n}, {d.b, d.m, d.k}, {d.b, d.k, d.n}};
       }},
      {"addr",
       [](const Dims& d, Random&) {
         return SizesList{{d.m, d.n}, {d.m}, {d.n}};
       }},
      {"outer", outer},
      {"ger", outer},
      {"scaled_dot_product_attention", attention_shapes}};
  return family;
}

const Family& norms_and_losses() {
  static const Shapes layer_norm = [](const Dims& d, Random&) {
    return SizesList{{d.b, d.m, d.k}, {d.k}, {d.k}};
  };
  static const Shapes rms_norm = [](const Dims& d, Random&) {
    return SizesList{{d.b, d.m, d.k}, {d.k}};
  };
  static const Shapes group_norm = [](const Dims& d, Random&) {
    return SizesList{{d.b, 4, d.k}, {4}, {4}};
  };
  static const Shapes batch_norm = [](const Dims& d, Random&) {
    return SizesList{{d.b, 4, d.k}, {4}, {4}, {4}, {4}};
  };
  static const Shapes losses = [](const Dims& d, Random&) {
    return SizesList{{d.m, 5}, {d.m}, {5}};
  };
  static const Family family = {
      {"native_layer_norm", layer_norm},
      {"layer_norm", layer_norm},
      {"rms_norm", rms_norm},
      {"_fused_rms_norm", rms_norm},
      {"native_group_norm", group_norm},
      {"group_norm", group_norm},
      {"batch_norm", batch_norm},
      {"native_batch_norm", batch_norm},
      {"_batch_norm_with_update", batch_norm},
      {"_batch_norm_no_update", batch_norm},
      {"nll_loss_forward", losses},
      {"nll_loss", losses},
      {"cross_entropy_loss", losses}};
  return family;
}

const Family& indexing() {
  static const Shapes gather = [](const Dims& d, Random&) {
    return SizesList{{6, 6}, {d.m, std::min<int64_t>(d.n, 6)}};
  };
  static const Shapes add = [](const Dims&, Random&) {
    return SizesList{{6, 6}, {6}, {6, 6}};
  };
  static const Shapes scatter = [](const Dims&, Random&) {
    return SizesList{{6, 6}, {4, 5}, {5, 6}};
  };
  static const Family family = {
      {"embedding",
       [](const Dims& d, Random&) {
         return SizesList{{7, d.k}, {d.m, std::min<int64_t>(d.n, 8)}};
       }},
      {"index_select",
       [](const Dims& d, Random&) {
         return SizesList{{6, d.m}, {std::min<int64_t>(d.k, 8)}};
       }},
      {"gather", gather},
      {"take_along_dim", gather},
      {"index_add", add},
      {"index_copy", add},
      {"scatter", scatter},
      {"scatter_add", scatter}};
  return family;
}

// Returns operand shapes for operators with interdependent shapes, and nothing
// for other operators.
SizesList
related_shapes(const std::string& name, bool has_heads, Random& random) {
  for (const auto* family : {&products(), &norms_and_losses(), &indexing()}) {
    const auto found = family->find(name);
    if (found != family->end()) {
      return found->second(dims_of(has_heads, random), random);
    }
  }
  return {};
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

} // namespace

bool is_tensor(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(
      *c10::OptionalType::create(c10::TensorType::get()));
}

bool is_tensor_list(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
}

std::vector<Operand> draw_operands(
    const c10::FunctionSchema& schema,
    Random& random,
    bool has_heads) {
  auto op = schema.operator_name().name.substr(6);
  if (op.back() == '_' && op.rfind("__", 0) != 0) {
    op.pop_back();
  }
  const auto related = related_shapes(op, has_heads, random);
  const auto base =
      has_heads ? shape_of_heads(random) : shape(random, random.below(4));
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

} // namespace dtensor::randomized
