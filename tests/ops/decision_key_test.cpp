// SPDX-License-Identifier: BSD-3-Clause
// Consecutive calls that need different decisions have different keys.
#include "same_or_error.h"

namespace dtensor::testing {
namespace TEST_SOURCE {

// Pads a partial sum. Only zeros may be added without reducing it first.
at::Tensor padded(const at::Tensor& x, const at::Scalar& value) {
  return at::constant_pad_nd(x, {1, 1}, value);
}

TEST(DecisionKey, NumbersOfEveryKind) {
  const auto plain = at::complex(uniform({3, 2}, 1), uniform({3, 2}, 2));
  const std::vector<at::Scalar> numbers = {
      0,
      1,
      false,
      true,
      0.0,
      1.5,
      c10::complex<double>(0, 0),
      c10::complex<double>(1, 1),
      c10::complex<double>(0, 1),
      c10::complex<double>(1, 0)};
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto terms = at::complex(
        partial_term(at::real(plain), mesh, ReduceOp::kSum),
        partial_term(at::imag(plain), mesh, ReduceOp::kSum));
    const at::Tensor x = DTensor::from_local(terms, mesh, {Partial()});
    for (int call = 0; call < 2; ++call) {
      for (const auto& number : numbers) {
        EXPECT_TRUE(close(full(padded(x, number)), padded(plain, number)))
            << number;
      }
    }
  });
}

// Sets the default dtype of floating-point results while it exists.
struct DefaultDtype {
  explicit DefaultDtype(at::ScalarType dtype) {
    c10::set_default_dtype(at::scalarTypeToTypeMeta(dtype));
  }
  ~DefaultDtype() {
    c10::set_default_dtype(at::scalarTypeToTypeMeta(at::kFloat));
  }
};

TEST(DecisionKey, DefaultDtype) {
  const auto plain = at::arange(1, 5);
  run_ranks(1, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {1});
    const auto x = distribute_tensor(plain, mesh, {Shard(0)});
    for (const auto dtype : {at::kFloat, at::kDouble, at::kFloat}) {
      const DefaultDtype scope(dtype);
      for (const auto& y : {x * 0.5, x / 2, x.sin(), at::softmax(x * 1.0, 0)}) {
        EXPECT_EQ(y.scalar_type(), dtype);
      }
      EXPECT_TRUE(close(full(x * 0.1), plain * 0.1));
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
