// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/backend/reduce_impl.h>

#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <c10/macros/Macros.h>
#include <c10/util/BFloat16.h>
#include <dtensor/comm/group/backend_call_impl.h>

#include <algorithm>
#include <bit>
#include <type_traits>

namespace dtensor::detail {
namespace {

// Size from which tensor operators are faster than the bf16 loops here. Tensor
// operators use newer bf16 instructions, but take more steps to start.
constexpr int64_t kLongBF16Bytes = 1 << 15;

bool is_arithmetic(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAvg ||
      op == ReduceOp::kProduct;
}

// out = a op b; out may be a. Returns out.
at::Tensor& combine(
    at::Tensor& out,
    const at::Tensor& a,
    const at::Tensor& b,
    ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return at::add_out(out, a, b);
    case ReduceOp::kMin:
      return at::minimum_out(out, a, b);
    case ReduceOp::kMax:
      return at::maximum_out(out, a, b);
    case ReduceOp::kProduct:
      return at::mul_out(out, a, b);
    case ReduceOp::kBand:
      return at::bitwise_and_out(out, a, b);
    case ReduceOp::kBor:
      return at::bitwise_or_out(out, a, b);
    case ReduceOp::kBxor:
      return at::bitwise_xor_out(out, a, b);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown reduction");
}

// Integers wrap around, as in tensor operators.
struct Sum {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};

// The result is NaN if either operand is NaN.
struct Min {
  template <typename T>
  static T of(T a, T b) {
    return a != a || a < b ? a : b;
  }
};

struct Max {
  template <typename T>
  static T of(T a, T b) {
    return a != a || a > b ? a : b;
  }
};

// Works in blocks of constant length, which the compiler vectorizes.
template <typename Op, typename T>
void combine(const T* a, const T* b, T* out, int64_t count) {
  constexpr int64_t kBlock = 32;
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    T block[kBlock];
    for (int64_t j = 0; j < kBlock; ++j) {
      block[j] = Op::of(a[i + j], b[i + j]);
    }
    std::copy(block, block + kBlock, out + i);
  }
  for (; i < count; ++i) {
    out[i] = Op::of(a[i], b[i]);
  }
}

template <typename T>
void divide(T* values, int64_t count, size_t by) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] /= static_cast<T>(by);
  }
}

// Works in blocks, so that the output stays in the cache until it is complete.
template <typename Op, typename T>
void reduce(
    c10::ArrayRef<const void*> inputs,
    T* out,
    int64_t count,
    bool average) {
  constexpr int64_t kPiece = 2048;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t length = std::min(kPiece, count - begin);
    const auto* a = static_cast<const T*>(inputs[0]) + begin;
    for (size_t i = 1; i < inputs.size(); ++i) {
      const auto* b = static_cast<const T*>(inputs[i]) + begin;
      combine<Op>(a, b, out + begin, length);
      a = out + begin;
    }
    if constexpr (std::is_floating_point_v<T>) {
      if (average) {
        divide(out + begin, length, inputs.size());
      }
    }
  }
}

// Conversion of bf16 by its bits: branch-free, so the compiler vectorizes it.
float widened(c10::BFloat16 value) {
  return std::bit_cast<float>(uint32_t{value.x} << 16);
}

c10::BFloat16 rounded(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t result = value != value ? 0x7fc0 : nearest;
  return {static_cast<uint16_t>(result), c10::BFloat16::from_bits()};
}

template <typename Op>
C10_ALWAYS_INLINE void reduce_block(
    c10::ArrayRef<const void*> inputs,
    c10::BFloat16* out,
    int64_t begin,
    int64_t length,
    bool average) {
  float wide[64];
  const auto* first = static_cast<const c10::BFloat16*>(inputs[0]) + begin;
  for (int64_t j = 0; j < length; ++j) {
    wide[j] = widened(first[j]);
  }
  for (const void* input : inputs.slice(1)) {
    const auto* next = static_cast<const c10::BFloat16*>(input) + begin;
    for (int64_t j = 0; j < length; ++j) {
      wide[j] = Op::of(wide[j], widened(next[j]));
    }
  }
  if (average) {
    divide(wide, length, inputs.size());
  }
  for (int64_t j = 0; j < length; ++j) {
    out[begin + j] = rounded(wide[j]);
  }
}

// Accumulates in f32 and rounds once.
template <typename Op>
void reduce(
    c10::ArrayRef<const void*> inputs,
    c10::BFloat16* out,
    int64_t count,
    bool average) {
  constexpr int64_t kBlock = 64;
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    reduce_block<Op>(inputs, out, i, kBlock, average);
  }
  reduce_block<Op>(inputs, out, i, count - i, average);
}

template <typename T>
void reduce_as(
    ReduceOp op,
    c10::ArrayRef<const void*> inputs,
    void* out,
    int64_t count) {
  T* const to = static_cast<T*>(out);
  switch (op) {
    case ReduceOp::kMin:
      return reduce<Min>(inputs, to, count, false);
    case ReduceOp::kMax:
      return reduce<Max>(inputs, to, count, false);
    default:
      return reduce<Sum>(inputs, to, count, op == ReduceOp::kAvg);
  }
}

} // namespace

void reduce_into(
    const at::Tensor& out,
    c10::ArrayRef<at::Tensor> inputs,
    ReduceOp op) {
  at::Tensor sum = out;
  // LibTorch itself computes a sum of two half values in float32 and rounds
  // once; an average could overflow before the division.
  const bool wide = at::isReducedFloatingType(out.scalar_type()) &&
      is_arithmetic(op) && (inputs.size() > 2 || op == ReduceOp::kAvg);
  if (wide) {
    sum = at::empty_like(out, out.options().dtype(at::kFloat));
    sum.copy_(inputs[0]);
    combine(sum, sum, inputs[1], op);
  } else {
    combine(sum, inputs[0], inputs[1], op);
  }
  for (size_t i = 2; i < inputs.size(); ++i) {
    combine(sum, sum, inputs[i], op);
  }
  if (op == ReduceOp::kAvg) {
    sum.div_(static_cast<double>(inputs.size()));
  }
  if (wide) {
    out.copy_(sum);
  }
}

bool has_loop(at::ScalarType dtype, ReduceOp op) {
  const bool known = op == ReduceOp::kSum || op == ReduceOp::kAvg ||
      op == ReduceOp::kMin || op == ReduceOp::kMax;
  return known &&
      (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kInt ||
       dtype == at::kLong || dtype == at::kBFloat16);
}

void reduce_loop(
    at::ScalarType dtype,
    ReduceOp op,
    c10::ArrayRef<const void*> inputs,
    void* out,
    int64_t count) noexcept {
  switch (dtype) {
    case at::kFloat:
      return reduce_as<float>(op, inputs, out, count);
    case at::kDouble:
      return reduce_as<double>(op, inputs, out, count);
    case at::kBFloat16:
      return reduce_as<c10::BFloat16>(op, inputs, out, count);
    case at::kInt:
      return reduce_as<int32_t>(op, inputs, out, count);
    default:
      return reduce_as<int64_t>(op, inputs, out, count);
  }
}

bool prefers_loop(at::ScalarType dtype, ReduceOp op, int64_t bytes) {
  const bool long_bf16 = dtype == at::kBFloat16 && bytes > kLongBF16Bytes;
  return has_loop(dtype, op) && !long_bf16;
}

void reduce_memory(
    at::ScalarType dtype,
    ReduceOp op,
    c10::ArrayRef<const void*> inputs,
    void* out,
    int64_t count) {
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  if (prefers_loop(dtype, op, count * item)) {
    reduce_loop(dtype, op, inputs, out, count);
    return;
  }
  const PlainTensors guard;
  c10::SmallVector<at::Tensor, 8> tensors;
  for (const void* input : inputs) {
    tensors.push_back(
        at::from_blob(const_cast<void*>(input), {count}, dtype)); // only read
  }
  reduce_into(at::from_blob(out, {count}, dtype), tensors, op);
}

} // namespace dtensor::detail
