// SPDX-License-Identifier: BSD-3-Clause
// Tests of `out=`. Accepted dtypes are those of the plain operator.
#include "same_or_error.h"

#include <ATen/ops/cat.h>

namespace dtensor::testing {
namespace TEST_SOURCE {

using Into = std::function<void(at::Tensor& out, const at::Tensor& x)>;

struct OutCase {
  const char* name;
  at::ScalarType input;
  at::ScalarType out;
  Into call;
};

std::vector<OutCase> cases() {
  const auto mul = [](at::Tensor& out, const at::Tensor& x) {
    at::mul_out(out, x, x);
  };
  const auto sum = [](at::Tensor& out, const at::Tensor& x) {
    at::sum_out(out, x, at::IntArrayRef{1}, true);
    at::mul_out(out, out, out);
  };
  const auto sum_only = [](at::Tensor& out, const at::Tensor& x) {
    at::sum_out(out, x, at::IntArrayRef{});
  };
  const auto mm = [](at::Tensor& out, const at::Tensor& x) {
    at::mm_out(out, x, x);
  };
  const auto cat = [](at::Tensor& out, const at::Tensor& x) {
    at::cat_out(out, {x});
  };
  const auto cumsum = [](at::Tensor& out, const at::Tensor& x) {
    at::cumsum_out(out, x, 0);
  };
  const auto exp = [](at::Tensor& out, const at::Tensor& x) {
    at::exp_out(out, x);
  };
  const auto eq = [](at::Tensor& out, const at::Tensor& x) {
    at::eq_out(out, x, x);
  };
  const auto norm = [](at::Tensor& out, const at::Tensor& x) {
    at::linalg_vector_norm_out(out, x, 2, at::IntArrayRef{1}, true);
  };
  const auto all_of = [](at::Tensor& out, const at::Tensor& x) {
    at::all_out(out, x, 1, true);
  };
  const auto any_of = [](at::Tensor& out, const at::Tensor& x) {
    at::any_out(out, x, 1, true);
  };
  const auto isin = [](at::Tensor& out, const at::Tensor& x) {
    at::isin_out(out, x, at::ones({1}, x.options()));
  };
  const auto bucketize = [](at::Tensor& out, const at::Tensor& x) {
    at::bucketize_out(out, x, at::ones({1}, x.options()));
  };
  const auto bitwise_not = [](at::Tensor& out, const at::Tensor& x) {
    at::bitwise_not_out(out, x);
  };
  const auto argmax = [](at::Tensor& out, const at::Tensor& x) {
    at::argmax_out(out, x, 1, true);
  };
  const auto aminmax = [](at::Tensor& out, const at::Tensor& x) {
    auto max = at::empty_like(out);
    at::aminmax_out(out, max, x, 1, true);
  };
  std::vector<OutCase> all;
  const at::ScalarType dtypes[] = {
      at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble, at::kBool};
  for (const auto in : dtypes) {
    for (const auto out : dtypes) {
      all.push_back({"mul", in, out, mul});
      all.push_back({"mm", in, out, mm});
      all.push_back({"cat", in, out, cat});
      all.push_back({"cumsum", in, out, cumsum});
      all.push_back({"exp", in, out, exp});
      all.push_back({"eq", in, out, eq});
      all.push_back({"sum", in, out, sum_only});
      all.push_back({"norm", in, out, norm});
      all.push_back({"all", in, out, all_of});
      all.push_back({"any", in, out, any_of});
      all.push_back({"isin", in, out, isin});
      all.push_back({"bucketize", in, out, bucketize});
      all.push_back({"bitwise_not", in, out, bitwise_not});
      all.push_back({"argmax", in, out, argmax});
      all.push_back({"aminmax", in, out, aminmax});
      all.push_back({"sum kept", in, out, sum});
    }
  }
  return all;
}

Sizes out_sizes(const OutCase& c) {
  const std::string name = c.name;
  const bool keeps_one = name == "norm" || name == "sum kept" ||
      name == "all" || name == "any" || name == "argmax" || name == "aminmax";
  return name == "sum" ? Sizes{} : keeps_one ? Sizes{4, 1} : Sizes{4, 4};
}

bool fails(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}

TEST(OutVariants, TakeTheDtypesThatPlainOnesTake) {
  Failures failures;
  for (const auto& c : cases()) {
    const auto input = (uniform({4, 4}, 1) * 7).to(c.input);
    auto truth = at::zeros(out_sizes(c), at::TensorOptions().dtype(c.out));
    const bool refused = fails([&] { c.call(truth, input); });
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2});
      for (const auto& p : {Replicate(), Shard(0)}) {
        const auto where = c10::str(
            c.name, " of ", c.input, " into ", c.out, " ", to_string(p));
        const auto x = place(input, mesh, p);
        auto out = place(
            at::zeros(out_sizes(c), at::TensorOptions().dtype(c.out)),
            mesh,
            c.name == std::string("sum") ? Replicate() : p);
        const bool mine = fails([&] { c.call(out, x); });
        if (mine != refused) {
          failures.add(where + (mine ? ": refused" : ": not refused"));
        } else if (
            !mine &&
            !at::allclose(
                full(out).to(at::kDouble), truth.to(at::kDouble), 1e-3, 1e-3)) {
          failures.add(c10::str(where, ": ", full(out), " plain ", truth));
        }
      }
    });
  }
  EXPECT_EQ(failures.text(), "");
}

// Out variants report the plain operator's own errors. This operator has no
// kernel for meta tensors that could check the call.
TEST(OutVariants, AreRefusedWherePlainOnesAreForReasonsOfTheirOwn) {
  const auto complex = error_on_ranks([](const DeviceMesh& mesh) {
    const auto x = place(at::ones({4, 4}, at::kDouble), mesh, Shard(0));
    auto out = place(at::ones({4, 4}, at::kComplexFloat), mesh, Shard(0));
    at::complex_out(out, x, x);
  });
  EXPECT_NE(
      complex.find("Expected object of scalar type ComplexDouble but got "
                   "scalar type ComplexFloat for argument 'out'"),
      std::string::npos)
      << complex;
  const auto multinomial = error_on_ranks([](const DeviceMesh& mesh) {
    const auto x = place(at::ones({4, 4}), mesh, Replicate());
    auto out = place(at::ones({4, 2}, at::kDouble), mesh, Replicate());
    at::multinomial_out(out, x, 2);
  });
  EXPECT_NE(
      multinomial.find("multinomial expects Long tensor out, got: Double"),
      std::string::npos)
      << multinomial;
}

TEST(OutVariants, NameDtypesThatDoNotFit) {
  EXPECT_EQ(
      error_on_ranks([](const DeviceMesh& mesh) {
        const auto x = place(at::ones({4, 4}), mesh, Shard(0));
        auto out = place(at::ones({4, 4}, at::kLong), mesh, Shard(0));
        at::mul_out(out, x, x);
      }),
      "[aten::mul] the result, f32[4, 4] on (tp=2): S(0), cannot be converted "
      "to out, i64[4, 4] on (tp=2): S(0). Pass an out of the dtype of the "
      "result.");
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
