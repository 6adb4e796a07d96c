// SPDX-License-Identifier: BSD-3-Clause
// The pointwise operators, one list of names per class. A class defines which
// inputs may be Partial, and under which reductions; see pointwise.cpp.
//
// In-place, out and foreach variants follow from their operator. In-place
// operators are listed only if no functional operator of the same overload
// exists.
#pragma once

#include <cstdint>

// clang-format off
namespace dtensor::detail {

/// Further properties of an operator.
enum class Note : uint8_t {
  kNothing,
  /// LibTorch has no meta kernel in C++: pointwise_meta() computes shapes.
  kNoMeta,
  /// Sets OpTraits::gradient_from_sizes_only.
  kGradientOfSizes,
};
inline constexpr auto kNoMeta = Note::kNoMeta;
inline constexpr auto kGradientOfSizes = Note::kGradientOfSizes;

/// An operator, written as "cos" or {"abs", kNoMeta}.
struct PointwiseName {
  constexpr PointwiseName(const char* op, Note also = Note::kNothing)
      : name(op), note(also) {}
  const char* name;
  Note note;
};

/// Operators that are neither additive nor monotone. Partial operands are
/// reduced first.
inline constexpr PointwiseName kPointwise[] = {
    {"__ilshift__.Scalar", kNoMeta}, {"__ilshift__.Tensor", kNoMeta},
    {"__irshift__.Scalar", kNoMeta}, {"__irshift__.Tensor", kNoMeta},
    {"__lshift__.Scalar", kNoMeta}, {"__lshift__.Tensor", kNoMeta},
    {"__rshift__.Scalar", kNoMeta}, {"__rshift__.Tensor", kNoMeta},
    {"abs", kNoMeta}, "acos", "acosh", {"angle", kNoMeta}, "asin", "atan2",
    "atanh", "bitwise_and.Scalar", "bitwise_and.Scalar_Tensor",
    "bitwise_and.Tensor", "bitwise_left_shift.Scalar_Tensor",
    "bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar",
    "bitwise_not", "bitwise_or.Scalar", "bitwise_or.Scalar_Tensor",
    "bitwise_or.Tensor", "bitwise_right_shift.Scalar_Tensor",
    "bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar",
    "bitwise_xor.Scalar", "bitwise_xor.Scalar_Tensor", "bitwise_xor.Tensor",
    "celu", "clamp.Tensor", "copysign.Scalar",
    {"copysign.Tensor", kGradientOfSizes}, "cos", "cosh", "digamma",
    "div.Scalar_mode", "div.Tensor_mode", "elu", "eq.Scalar", "eq.Tensor",
    "erfc", "erfinv", {"floor_divide", kNoMeta},
    {"floor_divide.Scalar", kNoMeta}, {"floor_divide_.Tensor", kNoMeta}, "fmax",
    "fmin", "fmod.Scalar", "fmod.Tensor", "frac", "gcd", "ge.Scalar", "ge.Tensor", "gelu", "gt.Scalar",
    "gt.Tensor", "hardsigmoid", {"hardswish", kNoMeta}, "heaviside", "hypot",
    "i0", "igamma", "igammac", {"isinf", kNoMeta}, {"isnan", kNoMeta},
    "isneginf", "isposinf", "lcm", "le.Scalar", "le.Tensor", "leaky_relu",
    "lgamma", "log", "log10", "log1p", "log2", "logaddexp", "logaddexp2",
    {"logical_and", kNoMeta}, {"logical_not", kNoMeta}, {"logical_or", kNoMeta},
    {"logical_xor", kNoMeta}, {"logit", kNoMeta}, "lt.Scalar", "lt.Tensor",
    "mish", {"nan_to_num", kNoMeta}, "ne.Scalar", "ne.Tensor",
    {"nextafter", kGradientOfSizes}, {"polar", kNoMeta}, "polygamma",
    "pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow_.Scalar",
    "pow_.Tensor", "reciprocal", "remainder.Scalar",
    {"remainder.Scalar_Tensor", kNoMeta}, "remainder.Tensor", "round.decimals",
    "rsqrt", {"sgn", kGradientOfSizes}, "sign", "signbit", "silu", "sin",
    "sinc", "softplus", "softshrink", "special_airy_ai", "special_bessel_j0",
    "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
    "special_chebyshev_polynomial_t", "special_chebyshev_polynomial_t.n_scalar",
    "special_chebyshev_polynomial_t.x_scalar", "special_chebyshev_polynomial_u",
    "special_chebyshev_polynomial_u.n_scalar",
    "special_chebyshev_polynomial_u.x_scalar", "special_chebyshev_polynomial_v",
    "special_chebyshev_polynomial_v.n_scalar",
    "special_chebyshev_polynomial_v.x_scalar", "special_chebyshev_polynomial_w",
    "special_chebyshev_polynomial_w.n_scalar",
    "special_chebyshev_polynomial_w.x_scalar", "special_entr", "special_erfcx",
    "special_hermite_polynomial_h", "special_hermite_polynomial_h.n_scalar",
    "special_hermite_polynomial_h.x_scalar", "special_hermite_polynomial_he",
    "special_hermite_polynomial_he.n_scalar",
    "special_hermite_polynomial_he.x_scalar", "special_i0e", "special_i1",
    "special_i1e", "special_laguerre_polynomial_l",
    "special_laguerre_polynomial_l.n_scalar",
    "special_laguerre_polynomial_l.x_scalar", "special_legendre_polynomial_p",
    "special_legendre_polynomial_p.n_scalar",
    "special_legendre_polynomial_p.x_scalar", "special_log_ndtr",
    "special_modified_bessel_i0", "special_modified_bessel_i1",
    "special_modified_bessel_k0", "special_modified_bessel_k1", "special_ndtri",
    "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
    "special_shifted_chebyshev_polynomial_t",
    "special_shifted_chebyshev_polynomial_t.n_scalar",
    "special_shifted_chebyshev_polynomial_t.x_scalar",
    "special_shifted_chebyshev_polynomial_u",
    "special_shifted_chebyshev_polynomial_u.n_scalar",
    "special_shifted_chebyshev_polynomial_u.x_scalar",
    "special_shifted_chebyshev_polynomial_v",
    "special_shifted_chebyshev_polynomial_v.n_scalar",
    "special_shifted_chebyshev_polynomial_v.x_scalar",
    "special_shifted_chebyshev_polynomial_w",
    "special_shifted_chebyshev_polynomial_w.n_scalar",
    "special_shifted_chebyshev_polynomial_w.x_scalar",
    "special_spherical_bessel_j0", "special_xlog1py",
    "special_xlog1py.other_scalar", "special_xlog1py.self_scalar",
    "special_zeta", "special_zeta.other_scalar", "special_zeta.self_scalar",
    "sqrt", "tan", "threshold", "xlogy.Scalar_Other", "xlogy.Scalar_Self",
    "xlogy.Tensor"};

/// Operators with f(a + b) = f(a) + f(b) in the first operand for any values of
/// the others. Backward operators have this property in the gradient.
inline constexpr PointwiseName kLinearInFirst[] = {
    "_conj", {"_conj_physical", kNoMeta}, "_neg_view",
    {"conj_physical_", kNoMeta}, "deg2rad", "div.Scalar", "div.Tensor",
    "elu_backward", "gelu_backward", "hardshrink_backward",
    "hardsigmoid_backward", {"hardswish_backward", kNoMeta},
    {"hardtanh_backward", kNoMeta}, {"ldexp.Tensor", kNoMeta},
    {"ldexp_", kNoMeta},
    "leaky_relu_backward", "logit_backward", "mish_backward", "mul.Scalar",
    "rad2deg", "rrelu_with_noise_backward", "sigmoid_backward", "silu_backward",
    "softplus_backward", "softshrink_backward", "tanh_backward",
    "threshold_backward"};

/// Operators that are linear in the first two operands together.
inline constexpr PointwiseName kBlends[] = {
    {"complex", kNoMeta}, "lerp.Scalar", "lerp.Tensor"};

/// Operators f(x) that are non-decreasing wherever they are defined, and NaN
/// for NaN: the greatest f(x_r) is f of the greatest x_r. Excluded are
/// operators that map some numbers to NaN (log, sqrt) or NaN to a number
/// (sign), and operators that some parameters make decreasing (leaky_relu,
/// elu).
inline constexpr PointwiseName kNonDecreasing[] = {
    "asinh", "atan", "ceil", "clamp", "clamp_max", "clamp_min", "erf", "exp",
    "exp2", "expm1", "floor", "hardshrink", {"hardtanh", kNoMeta},
    {"relu", kNoMeta}, "round", "sigmoid", "sinh", "tanh", "trunc"};

} // namespace dtensor::detail
