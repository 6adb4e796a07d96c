// SPDX-License-Identifier: BSD-3-Clause
// Composite operators that keep LibTorch's decomposition even on replicated
// tensors, because it consists of one or two operators with rules. A region
// would add more autograd nodes. All other composite operators run as one
// region on replicated tensors (ops/scopes/replicated.cpp).
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>

namespace dtensor {
namespace {

// Aliases of operators, and overloads that only supply a default argument.
constexpr const char* kOtherNames[] = {
    "absolute",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argsort",
    "argsort.stable",
    "argwhere",
    "clip",
    "clip.Tensor",
    "concat",
    "concatenate",
    "divide.Scalar",
    "divide.Scalar_mode",
    "divide.Tensor",
    "divide.Tensor_mode",
    "fix",
    "ger",
    "greater.Scalar",
    "greater.Tensor",
    "greater_equal.Scalar",
    "greater_equal.Tensor",
    "less.Scalar",
    "less.Tensor",
    "less_equal.Scalar",
    "less_equal.Tensor",
    "linalg_matmul",
    "log_softmax.int",
    "max.other",
    "min.other",
    "multiply.Scalar",
    "multiply.Tensor",
    "negative",
    "not_equal.Scalar",
    "not_equal.Tensor",
    "softmax.int",
    "special_log_softmax",
    "special_softmax",
    "square",
    "std",
    "std.dim",
    "std_mean",
    "std_mean.dim",
    "subtract.Scalar",
    "subtract.Tensor",
    "true_divide.Scalar",
    "true_divide.Tensor",
    "type_as",
    "var",
    "var.dim",
    "var_mean",
    "var_mean.dim",
};

// Operators that decompose into one operator with a rule and little else.
constexpr const char* kShort[] = {
    "__and__.Scalar", "__and__.Tensor", "__or__.Scalar", "__or__.Tensor",
    "__xor__.Scalar", "__xor__.Tensor", "conj_physical", "dstack",
    "hstack",         "inner",          "isclose",       "isfinite",
    "isreal",         "l1_loss",        "log_sigmoid",   "nll_loss",
    "nll_loss_nd",    "outer",          "relu6",         "selu",
    "take_along_dim", "tile",           "vstack",        "where.Scalar",
};

// Views whose schemas do not declare them as such.
constexpr const char* kViews[] = {
    "atleast_1d",
    "atleast_1d.Sequence",
    "atleast_2d",
    "atleast_2d.Sequence",
    "atleast_3d",
    "atleast_3d.Sequence",
    "broadcast_tensors",
    "data",
    "meshgrid",
    "meshgrid.indexing",
};

} // namespace

DTENSOR_RULES(composite) {
  for (const auto* name : kOtherNames) {
    rules.keep_composite(name);
  }
  for (const auto* name : kShort) {
    rules.keep_composite(name);
  }
  for (const auto* name : kViews) {
    rules.keep_composite(name);
  }
}

} // namespace dtensor
