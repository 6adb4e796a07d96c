// SPDX-License-Identifier: BSD-3-Clause
// What graphs compute of sizes: Python's arithmetic on numbers; and what they
// make sure of.
#include <dtensor/program/read_graph_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

namespace dtensor::detail {
namespace {

using c10::IValue;
using Args = c10::ArrayRef<IValue>;

double real(const IValue& value) {
  if (value.isBool()) {
    return value.toBool() ? 1 : 0;
  }
  return value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
}

int64_t whole(const IValue& value) {
  if (value.isBool()) {
    return value.toBool() ? 1 : 0;
  }
  return value.isInt() ? value.toInt() : static_cast<int64_t>(value.toDouble());
}

bool are_whole(Args args) {
  return std::none_of(
      args.begin(), args.end(), [](const auto& a) { return a.isDouble(); });
}

bool truth(const IValue& value) {
  return real(value) != 0;
}

template <class F>
IValue arithmetic(Args args, const F& f) {
  if (are_whole(args)) {
    return static_cast<int64_t>(f(whole(args[0]), whole(args[1])));
  }
  return static_cast<double>(f(real(args[0]), real(args[1])));
}

template <class F>
IValue compared(Args args, const F& f) {
  return are_whole(args) ? f(whole(args[0]), whole(args[1]))
                         : f(real(args[0]), real(args[1]));
}

// Rounds to minus infinity, as Python does.
int64_t floor_div(int64_t a, int64_t b) {
  const auto quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

void check_divisor(const IValue& by) {
  DTENSOR_CHECK_VALUE(
      real(by) != 0,
      "Program",
      "the graph divides a size by zero. Call it with sizes as it was exported "
      "for.");
}

IValue floor_division(Args args) {
  check_divisor(args[1]);
  return are_whole(args) ? IValue(floor_div(whole(args[0]), whole(args[1])))
                         : IValue(std::floor(real(args[0]) / real(args[1])));
}

IValue modulo(Args args) {
  check_divisor(args[1]);
  if (are_whole(args)) {
    const auto a = whole(args[0]);
    const auto b = whole(args[1]);
    return a - floor_div(a, b) * b;
  }
  const double a = real(args[0]);
  const double b = real(args[1]);
  return a - std::floor(a / b) * b;
}

IValue power(Args args) {
  if (!are_whole(args) || whole(args[1]) < 0) {
    return std::pow(real(args[0]), real(args[1]));
  }
  int64_t result = 1;
  for (int64_t i = 0; i < whole(args[1]); ++i) {
    result *= whole(args[0]);
  }
  return result;
}

int64_t dim_of(const at::Tensor& tensor, const IValue& dim) {
  return c10::maybe_wrap_dim(dim.toInt(), tensor.dim());
}

const std::map<std::string_view, ScalarFunction>& functions() {
  static const std::map<std::string_view, ScalarFunction> all = {
      {"torch.ops.aten.sym_size.int",
       [](Args a) -> IValue { return a[0].toTensor().size(a[1].toInt()); }},
      {"torch.ops.aten.sym_numel.default",
       [](Args a) -> IValue { return a[0].toTensor().numel(); }},
      {"torch.ops.aten.sym_stride.int",
       [](Args a) -> IValue {
         const auto& t = a[0].toTensor();
         return t.stride(dim_of(t, a[1]));
       }},
      {"torch.ops.aten.sym_storage_offset.default",
       [](Args a) -> IValue { return a[0].toTensor().storage_offset(); }},
      {"_operator.add", [](Args a) { return arithmetic(a, std::plus<>()); }},
      {"_operator.sub", [](Args a) { return arithmetic(a, std::minus<>()); }},
      {"_operator.mul",
       [](Args a) { return arithmetic(a, std::multiplies<>()); }},
      {"_operator.floordiv", floor_division},
      {"_operator.mod", modulo},
      {"_operator.pow", power},
      {"_operator.truediv",
       [](Args a) -> IValue {
         check_divisor(a[1]);
         return real(a[0]) / real(a[1]);
       }},
      {"_operator.neg",
       [](Args a) {
         return a[0].isDouble() ? IValue(-a[0].toDouble())
                                : IValue(-whole(a[0]));
       }},
      {"_operator.pos", [](Args a) { return a[0]; }},
      {"_operator.eq", [](Args a) { return compared(a, std::equal_to<>()); }},
      {"_operator.ne",
       [](Args a) { return compared(a, std::not_equal_to<>()); }},
      {"_operator.lt", [](Args a) { return compared(a, std::less<>()); }},
      {"_operator.le", [](Args a) { return compared(a, std::less_equal<>()); }},
      {"_operator.gt", [](Args a) { return compared(a, std::greater<>()); }},
      {"_operator.ge",
       [](Args a) { return compared(a, std::greater_equal<>()); }},
      {"_operator.and_",
       [](Args a) -> IValue { return truth(a[0]) && truth(a[1]); }},
      {"_operator.or_",
       [](Args a) -> IValue { return truth(a[0]) || truth(a[1]); }},
      {"torch.sym_not", [](Args a) -> IValue { return !truth(a[0]); }},
      {"torch.sym_float", [](Args a) -> IValue { return real(a[0]); }},
      {"torch.sym_int", [](Args a) -> IValue { return whole(a[0]); }},
      {"torch.sym_max",
       [](Args a) {
         return arithmetic(a, [](auto x, auto y) { return std::max(x, y); });
       }},
      {"torch.sym_min",
       [](Args a) {
         return arithmetic(a, [](auto x, auto y) { return std::min(x, y); });
       }},
      {"torch.sym_ite", [](Args a) { return truth(a[0]) ? a[1] : a[2]; }},
      {"torch._sym_sqrt",
       [](Args a) -> IValue { return std::sqrt(real(a[0])); }},
      {"_operator.lshift",
       [](Args a) -> IValue { return whole(a[0]) << whole(a[1]); }},
      {"_operator.rshift",
       [](Args a) -> IValue { return whole(a[0]) >> whole(a[1]); }},
      {"math.ceil",
       [](Args a) -> IValue {
         return static_cast<int64_t>(std::ceil(real(a[0])));
       }},
      {"math.floor",
       [](Args a) -> IValue {
         return static_cast<int64_t>(std::floor(real(a[0])));
       }},
      {"math.trunc", [](Args a) -> IValue { return whole(a[0]); }},
      {"builtins.round", [](Args a) -> IValue {
         return static_cast<int64_t>(std::nearbyint(real(a[0])));
       }}};
  return all;
}

} // namespace

IValue check_dtype(Args args) {
  const auto given = args[0].toTensor().scalar_type();
  const auto expected = args[1].isNone() ? given : args[1].toScalarType();
  DTENSOR_CHECK_VALUE(
      given == expected || given == at::kDouble,
      "Program",
      "a value is ",
      short_name(given),
      " in a scope of autocast, and it was exported as ",
      short_name(expected),
      ". Export the model with strict=False, which sees what is cast.");
  return {};
}

ScalarFunction scalar_function(const std::string& target) {
  const auto found = functions().find(target);
  return found == functions().end() ? nullptr : found->second;
}

} // namespace dtensor::detail
