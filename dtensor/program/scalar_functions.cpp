// SPDX-License-Identifier: BSD-3-Clause
// Functions on numbers in graphs: Python's arithmetic on sizes, and assertions.
#include <dtensor/program/read_graph_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string_view>

namespace dtensor::detail {
namespace {

using c10::IValue;
using Args = c10::ArrayRef<IValue>;

// Python's integers have any size; integers here have 64 bits.
[[noreturn]] void refuse_range() {
  DTENSOR_THROW_VALUE(
      "[Program] an integer in the graph overflows 64 bits. Call it with sizes "
      "that it was exported for.");
}

int64_t checked(bool overflows, int64_t value) {
  if (overflows) {
    refuse_range();
  }
  return value;
}

int64_t add(int64_t a, int64_t b) {
  int64_t sum = 0;
  const bool overflows = __builtin_add_overflow(a, b, &sum);
  return checked(overflows, sum);
}

int64_t subtract(int64_t a, int64_t b) {
  int64_t difference = 0;
  const bool overflows = __builtin_sub_overflow(a, b, &difference);
  return checked(overflows, difference);
}

int64_t multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  const bool overflows = __builtin_mul_overflow(a, b, &product);
  return checked(overflows, product);
}

double add(double a, double b) {
  return a + b;
}

double subtract(double a, double b) {
  return a - b;
}

double multiply(double a, double b) {
  return a * b;
}

template <class Number>
Number minimum(Number a, Number b) {
  return std::min(a, b);
}

template <class Number>
Number maximum(Number a, Number b) {
  return std::max(a, b);
}

bool is_real(const IValue& value) {
  return value.isInt() || value.isBool() || value.isDouble();
}

double real(const IValue& value) {
  DTENSOR_CHECK_TYPE(
      is_real(value),
      "[Program] the graph computes with a {} where it needs a real number. "
      "Export the program again.",
      value.tagKind());
  if (value.isBool()) {
    return value.toBool() ? 1 : 0;
  }
  return value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
}

// Rounds to zero.
int64_t to_int(double value) {
  constexpr double kTwoTo63 = 9223372036854775808.0;
  if (!(value >= -kTwoTo63 && value < kTwoTo63)) { // also true for NaN
    refuse_range();
  }
  return static_cast<int64_t>(value);
}

int64_t integer(const IValue& value) {
  return value.isInt() ? value.toInt() : to_int(real(value));
}

bool are_integers(Args args) {
  return std::ranges::all_of(
      args, [](const auto& a) { return a.isInt() || a.isBool(); });
}

bool truth(const IValue& value) {
  return real(value) != 0;
}

template <
    int64_t (*of_integers)(int64_t, int64_t),
    double (*of_reals)(double, double)>
IValue arithmetic(Args args) {
  return are_integers(args)
      ? IValue(of_integers(integer(args[0]), integer(args[1])))
      : IValue(of_reals(real(args[0]), real(args[1])));
}

template <class F>
IValue compared(Args args) {
  return are_integers(args) ? F()(integer(args[0]), integer(args[1]))
                            : F()(real(args[0]), real(args[1]));
}

void check_divisor(const IValue& by) {
  DTENSOR_CHECK_VALUE(
      real(by) != 0,
      "[Program] the graph divides a size by zero. Call it with sizes that it "
      "was exported for.");
}

// The remainder has the sign of the divisor, as in Python.
int64_t modulo(int64_t a, int64_t b) {
  if (b == -1) { // the smallest integer has no quotient by -1
    return 0;
  }
  const auto rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) {
    return std::copysign(0.0, b);
  }
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

// Rounds to minus infinity.
int64_t floor_divide(int64_t a, int64_t b) {
  if (b == -1) {
    return subtract(int64_t{0}, a);
  }
  const auto quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

// Corrects the quotient as Python does, because rounding may leave it just
// below an integer.
double floor_divide(double a, double b) {
  const double rest = std::fmod(a, b);
  const bool is_below = rest != 0 && (rest < 0) != (b < 0);
  const double quotient = (a - rest) / b - (is_below ? 1 : 0);
  const double rounded = std::floor(quotient);
  return quotient - rounded > 0.5 ? rounded + 1 : rounded;
}

template <
    int64_t (*of_integers)(int64_t, int64_t),
    double (*of_reals)(double, double)>
IValue division(Args args) {
  check_divisor(args[1]);
  return arithmetic<of_integers, of_reals>(args);
}

IValue power(Args args) {
  if (are_integers(args) && integer(args[1]) >= 0) {
    int64_t result = 1;
    auto factor = integer(args[0]);
    for (auto left = integer(args[1]); left > 0; left /= 2) {
      result = left % 2 != 0 ? multiply(result, factor) : result;
      // Avoids overflow for the bases 0, 1 and -1, which may have any exponent.
      factor = left > 1 ? multiply(factor, factor) : factor;
    }
    return result;
  }
  const double base = real(args[0]);
  const double exponent = real(args[1]);
  const double result = std::pow(base, exponent);
  DTENSOR_CHECK_VALUE(
      std::isfinite(result) || !std::isfinite(base) || !std::isfinite(exponent),
      "[Program] the graph computes {} ** {}, which is not a real number. Call "
      "it with sizes that it was exported for.",
      base,
      exponent);
  return result;
}

int64_t check_shift(const IValue& by) {
  const auto bits = integer(by);
  DTENSOR_CHECK_VALUE(
      bits >= 0,
      "[Program] the graph shifts by {} bits. Call it with sizes that it was "
      "exported for.",
      bits);
  return bits;
}

IValue shift_left(Args args) {
  constexpr int64_t kMostBits = 62; // 2^63 is not an int64
  const auto value = integer(args[0]);
  const auto bits = check_shift(args[1]);
  if (value == 0) {
    return int64_t{0};
  }
  if (bits > kMostBits) {
    // -1 << 63 is the smallest integer.
    return checked(value != -1 || bits > kMostBits + 1, INT64_MIN);
  }
  return multiply(value, int64_t{1} << bits);
}

IValue shift_right(Args args) {
  constexpr int64_t kMostBits = 63;
  return integer(args[0]) >> std::min(check_shift(args[1]), kMostBits);
}

// Applies F to two bools or two integers.
template <class F>
IValue bitwise(Args args) {
  const auto bits = F()(integer(args[0]), integer(args[1]));
  return args[0].isBool() && args[1].isBool() ? IValue(bits != 0)
                                              : IValue(bits);
}

IValue square_root(Args args) {
  const double value = real(args[0]);
  DTENSOR_CHECK_VALUE(
      !(value < 0),
      "[Program] the graph takes the square root of {}. Call it with sizes "
      "that it was exported for.",
      value);
  return std::sqrt(value);
}

template <double (*round)(double)>
IValue rounded(Args args) {
  return are_integers(args) ? integer(args[0]) : to_int(round(real(args[0])));
}

int64_t dim_of(const at::Tensor& tensor, const IValue& dim) {
  return c10::maybe_wrap_dim(integer(dim), tensor.dim());
}
// In `args`, a dimension is a number ("n"), and "t" is a tensor.
const std::map<std::string_view, ScalarSignature>& functions() {
  static const std::map<std::string_view, ScalarSignature> all = {
      {"torch.ops.aten.sym_size.int",
       {[](Args a) -> IValue { return a[0].toTensor().size(integer(a[1])); },
        "tn"}},
      {"torch.ops.aten.sym_numel.default",
       {[](Args a) -> IValue { return a[0].toTensor().numel(); }, "t"}},
      {"torch.ops.aten.sym_stride.int",
       {[](Args a) -> IValue {
          const auto& t = a[0].toTensor();
          return t.stride(dim_of(t, a[1]));
        },
        "tn"}},
      {"torch.ops.aten.sym_storage_offset.default",
       {[](Args a) -> IValue { return a[0].toTensor().storage_offset(); },
        "t"}},
      {"_operator.add", {arithmetic<add, add>, "nn"}},
      {"_operator.sub", {arithmetic<subtract, subtract>, "nn"}},
      {"_operator.mul", {arithmetic<multiply, multiply>, "nn"}},
      {"_operator.floordiv", {division<floor_divide, floor_divide>, "nn"}},
      {"_operator.mod", {division<modulo, modulo>, "nn"}},
      {"_operator.pow", {power, "nn"}},
      {"_operator.truediv",
       {[](Args a) -> IValue {
          check_divisor(a[1]);
          return real(a[0]) / real(a[1]);
        },
        "nn"}},
      {"_operator.neg",
       {[](Args a) {
          return a[0].isDouble() ? IValue(-a[0].toDouble())
                                 : IValue(subtract(int64_t{0}, integer(a[0])));
        },
        "n"}},
      {"_operator.pos",
       {[](Args a) { return a[0].isDouble() ? a[0] : IValue(integer(a[0])); },
        "n"}},
      {"_operator.eq", {compared<std::equal_to<>>, "nn"}},
      {"_operator.ne", {compared<std::not_equal_to<>>, "nn"}},
      {"_operator.lt", {compared<std::less<>>, "nn"}},
      {"_operator.le", {compared<std::less_equal<>>, "nn"}},
      {"_operator.gt", {compared<std::greater<>>, "nn"}},
      {"_operator.ge", {compared<std::greater_equal<>>, "nn"}},
      {"_operator.and_", {bitwise<std::bit_and<>>, "nn"}},
      {"_operator.or_", {bitwise<std::bit_or<>>, "nn"}},
      {"torch.sym_not", {[](Args a) -> IValue { return !truth(a[0]); }, "n"}},
      {"torch.sym_float", {[](Args a) -> IValue { return real(a[0]); }, "n"}},
      {"torch.sym_int", {[](Args a) -> IValue { return integer(a[0]); }, "n"}},
      {"torch.sym_max", {arithmetic<maximum, maximum>, "nn"}},
      {"torch.sym_min", {arithmetic<minimum, minimum>, "nn"}},
      {"torch.sym_ite",
       {[](Args a) { return truth(a[0]) ? a[1] : a[2]; }, "nnn"}},
      {"torch._sym_sqrt", {square_root, "n"}},
      {"_operator.lshift", {shift_left, "nn"}},
      {"_operator.rshift", {shift_right, "nn"}},
      {"math.ceil", {rounded<std::ceil>, "n"}},
      {"math.floor", {rounded<std::floor>, "n"}},
      {"math.trunc", {[](Args a) -> IValue { return integer(a[0]); }, "n"}},
      {"builtins.round", {rounded<std::nearbyint>, "n"}}};
  return all;
}

} // namespace

IValue check_dtype(Args args) {
  const auto given = args[0].toTensor().scalar_type();
  const auto expected = args[1].isInt() ? args[1].toScalarType() : given;
  DTENSOR_CHECK_VALUE(
      given == expected || given == at::kDouble,
      "[Program] a value in an autocast scope is {}, but was exported as {}. "
      "Export the model with strict=False, which records the casts.",
      short_name(given),
      short_name(expected));
  return {};
}

const ScalarSignature* scalar_function(const std::string& target) {
  const auto found = functions().find(target);
  return found == functions().end() ? nullptr : &found->second;
}

} // namespace dtensor::detail
