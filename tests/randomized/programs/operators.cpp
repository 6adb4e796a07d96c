// SPDX-License-Identifier: BSD-3-Clause
#include "operators.h"

#include <torch/torch.h>

#include <algorithm>

namespace dtensor::programs {
namespace {

using Tensors = std::vector<at::Tensor>;
using Kind = OperatorKind;

int64_t dim_of(const at::Tensor& t, int64_t number) {
  return number % std::max<int64_t>(t.dim(), 1);
}

int64_t in_dim(const at::Tensor& t, int64_t dim, int64_t number) {
  return number % std::max<int64_t>(t.size(dim), 1);
}

double scalar(int64_t number) {
  return 0.25 * static_cast<double>(number % 9 - 4);
}

// Returns another shape with the same number of elements and one to three
// dimensions.
Sizes other_shape(const at::Tensor& t, const Numbers& n) {
  Sizes sizes;
  auto left = t.numel();
  for (size_t i = 0; i < 2 && left > 1; ++i) {
    auto part = 1 + n[i] % left;
    while (left % part != 0) {
      --part;
    }
    sizes.push_back(part);
    left /= part;
  }
  sizes.push_back(left);
  return sizes;
}

at::Tensor narrowed(const at::Tensor& x, const Numbers& n) {
  const auto d = dim_of(x, n[0]);
  const auto start = in_dim(x, d, n[1]);
  return x.narrow(d, start, n[2] % (x.size(d) - start + 1));
}

at::Tensor stepped(const at::Tensor& x, const Numbers& n) {
  const auto d = dim_of(x, n[0]);
  return x.slice(d, in_dim(x, d, n[1]), x.size(d), 1 + n[2] % 2);
}

at::Tensor one_of(const Tensors& parts, int64_t number) {
  TORCH_CHECK(!parts.empty(), "no parts");
  return parts[static_cast<size_t>(
      number % static_cast<int64_t>(parts.size()))];
}

at::Tensor expanded(const at::Tensor& x, const Numbers& n) {
  auto sizes = x.sizes().vec();
  for (auto& s : sizes) {
    s = s == 1 ? 2 : s;
  }
  if (n[0] % 2 == 0) {
    sizes.insert(sizes.begin(), 2);
  }
  return x.expand(sizes);
}

at::Tensor windows(const at::Tensor& x, const Numbers& n) {
  const auto d = dim_of(x, n[0]);
  return x.unfold(d, 1 + in_dim(x, d, n[1]), 1 + n[2] % 2);
}

at::Tensor permuted(const at::Tensor& x, const Numbers& n) {
  Sizes dims;
  for (int64_t d = 0; d < x.dim(); ++d) {
    dims.push_back((d + n[0]) % x.dim());
  }
  return x.permute(dims);
}

#define ONE(name, kind, code)                                             \
  {                                                                       \
    name, kind, 1, [](const Tensors& t, const Numbers& n) -> at::Tensor { \
      static_cast<void>(n);                                               \
      at::Tensor x = t[0];                                                \
      return code;                                                        \
    }                                                                     \
  }
#define TWO(name, kind, code)                                             \
  {                                                                       \
    name, kind, 2, [](const Tensors& t, const Numbers& n) -> at::Tensor { \
      static_cast<void>(n);                                               \
      at::Tensor x = t[0];                                                \
      at::Tensor y = t[1];                                                \
      return code;                                                        \
    }                                                                     \
  }

std::vector<Operator> value_operators() {
  return {
      ONE("mul_number", Kind::kValue, x * scalar(n[0])),
      ONE("add_number", Kind::kValue, x + scalar(n[0])),
      ONE("neg", Kind::kValue, -x),
      ONE("sin", Kind::kValue, x.sin()),
      ONE("tanh", Kind::kValue, x.tanh()),
      ONE("relu", Kind::kValue, x.relu()),
      ONE("clone", Kind::kValue, x.clone()),
      ONE("contiguous", Kind::kValue, x.contiguous()),
      ONE("sum", Kind::kValue, x.sum(dim_of(x, n[0]), n[1] % 2 == 0)),
      ONE("mean", Kind::kValue, x.mean(dim_of(x, n[0]), n[1] % 2 == 0)),
      ONE("amax", Kind::kValue, x.amax(dim_of(x, n[0]), true)),
      ONE("softmax", Kind::kValue, x.softmax(dim_of(x, n[0]))),
      ONE("cumsum", Kind::kValue, x.cumsum(dim_of(x, n[0]))),
      ONE("flip", Kind::kValue, x.flip(dim_of(x, n[0]))),
      ONE("layer_norm", Kind::kValue, at::layer_norm(x, x.sizes().back())),
      ONE("to_complex", Kind::kValue, at::complex(x, x * scalar(n[0]))),
      ONE("zeros_like", Kind::kValue, at::zeros_like(x)),
      TWO("add", Kind::kValue, x + y),
      TWO("sub", Kind::kValue, x - y),
      TWO("mul", Kind::kValue, x * y),
      TWO("matmul", Kind::kValue, x.matmul(y)),
      TWO("cat", Kind::kValue, at::cat({x, y}, dim_of(x, n[0]))),
      TWO("stack", Kind::kValue, at::stack({x, y}, dim_of(x, n[0]))),
      TWO("where", Kind::kValue, at::where(x > 0, x, y)),
  };
}

std::vector<Operator> view_operators() {
  return {
      ONE("select",
          Kind::kView,
          x.select(dim_of(x, n[0]), in_dim(x, dim_of(x, n[0]), n[1]))),
      ONE("narrow", Kind::kView, narrowed(x, n)),
      ONE("slice", Kind::kView, stepped(x, n)),
      ONE("t", Kind::kView, x.t()),
      ONE("transpose",
          Kind::kView,
          x.transpose(dim_of(x, n[0]), dim_of(x, n[1]))),
      ONE("permute", Kind::kView, permuted(x, n)),
      ONE("view", Kind::kView, x.view(other_shape(x, n))),
      ONE("reshape", Kind::kView, x.reshape(other_shape(x, n))),
      ONE("flatten", Kind::kView, x.flatten()),
      ONE("unsqueeze", Kind::kView, x.unsqueeze(dim_of(x, n[0]))),
      ONE("squeeze", Kind::kView, x.squeeze()),
      ONE("expand", Kind::kView, expanded(x, n)),
      ONE("unfold", Kind::kView, windows(x, n)),
      ONE("diagonal", Kind::kView, x.diagonal(n[0] % 3 - 1)),
      ONE("chunk", Kind::kView, one_of(x.chunk(2, dim_of(x, n[0])), n[1])),
      ONE("split", Kind::kView, one_of(x.split(2, dim_of(x, n[0])), n[1])),
      ONE("unbind", Kind::kView, one_of(x.unbind(dim_of(x, n[0])), n[1])),
      ONE("detach", Kind::kView, x.detach()),
      ONE("alias", Kind::kView, x.alias()),
      ONE("conj", Kind::kView, x.conj()),
      ONE("real", Kind::kView, at::real(x)),
      ONE("imag", Kind::kView, at::imag(x)),
      ONE("view_as_real", Kind::kView, at::view_as_real(x)),
  };
}

std::vector<Operator> write_operators() {
  return {
      ONE("mul_number_", Kind::kWrite, x.mul_(scalar(n[0]))),
      ONE("add_number_", Kind::kWrite, x.add_(scalar(n[0]))),
      ONE("fill_", Kind::kWrite, x.fill_(scalar(n[0]))),
      ONE("zero_", Kind::kWrite, x.zero_()),
      ONE("relu_", Kind::kWrite, x.relu_()),
      ONE("sin_", Kind::kWrite, x.sin_()),
      ONE("neg_", Kind::kWrite, x.neg_()),
      TWO("add_", Kind::kWrite, x.add_(y, scalar(n[0]))),
      TWO("mul_", Kind::kWrite, x.mul_(y)),
      TWO("copy_", Kind::kWrite, x.copy_(y)),
      TWO("add_out", Kind::kWrite, at::add_out(x, y, y)),
  };
}

#undef ONE
#undef TWO

} // namespace

const std::vector<Operator>& operators() {
  static const std::vector<Operator> all = [] {
    auto list = value_operators();
    for (const auto& more : {view_operators(), write_operators()}) {
      list.insert(list.end(), more.begin(), more.end());
    }
    return list;
  }();
  return all;
}

const Operator* find_operator(const std::string& name) {
  for (const auto& op : operators()) {
    if (op.name == name) {
      return &op;
    }
  }
  return nullptr;
}

} // namespace dtensor::programs
