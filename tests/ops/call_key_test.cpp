// SPDX-License-Identifier: BSD-3-Clause
// Boxed and unboxed calls have equal keys for arguments of every type, and
// calls that may be decided differently have different keys.
#include <ATen/Operators.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <dtensor/ops/path/call_key_impl.h>
#include <dtensor/ops/path/decide_impl.h>

#include "same_or_error.h"

#include <set>

namespace dtensor::testing {
namespace TEST_SOURCE {

using detail::LongKey;
using detail::ShortKey;

template <class Key, class... Args, size_t... i>
Key unboxed_key(
    const detail::OpInfo& info,
    std::index_sequence<i...>,
    const Args&... args) {
  Key key;
  (detail::add_to_key(key, args, info.value_matters[i]), ...);
  detail::add_caller_to_key(key, info);
  return key;
}

// Returns the types of the arguments of all calls below. Lists of fixed size
// are distinguished only for bools ("bool[n]").
std::set<std::string>& seen_types() {
  static std::set<std::string> all;
  return all;
}

void add_types(
    const c10::FunctionSchema& schema,
    std::set<std::string>& types) {
  for (const auto& argument : schema.arguments()) {
    const auto type = argument.real_type()->str();
    types.insert(type == "bool[]" && argument.N() ? "bool[n]" : type);
  }
}

// Key of a call of Op, checked to be equal in every form.
template <class Op, class Schema = typename Op::schema>
struct KeyOf;

template <class Op, class Result, class... Args>
struct KeyOf<Op, Result(Args...)> {
  static std::vector<uint64_t> call(Args... args) {
    const detail::OpInfo info(c10::Dispatcher::singleton().findSchemaOrThrow(
        Op::name, Op::overload_name));
    add_types(info.op.schema(), seen_types());
    const auto stack = c10::impl::boxArgs<Args...>(args...);
    const auto boxed = detail::key_of(info, stack);
    constexpr auto all = std::index_sequence_for<Args...>();
    const auto unboxed = unboxed_key<LongKey>(info, all, args...);
    EXPECT_TRUE(boxed.usable()) << info.name;
    EXPECT_TRUE(unboxed.usable()) << info.name;
    EXPECT_EQ(boxed.words().vec(), unboxed.words().vec()) << info.name;
    const auto shorter = unboxed_key<ShortKey>(info, all, args...);
    if (shorter.usable()) {
      EXPECT_EQ(shorter.words().vec(), boxed.words().vec()) << info.name;
      ++short_keys;
    }
    return boxed.words().vec();
  }
  static inline int short_keys = 0;
};

template <class Op, class... Args>
std::vector<uint64_t> key(Args&&... args) {
  return KeyOf<Op>::call(std::forward<Args>(args)...);
}

// Checks that all keys differ.
void expect_distinct(const std::vector<std::vector<uint64_t>>& keys) {
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(keys[i], keys[j]) << i << " and " << j;
    }
  }
}

// Returns the argument types of all operators on tensors in library "aten".
std::set<std::string> types_of_all_operators() {
  std::set<std::string> types;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || name.getNamespace() != "aten") {
      continue;
    }
    std::set<std::string> own;
    add_types(op->schema(), own);
    if (own.count("Tensor") > 0 || own.count("Tensor[]") > 0) {
      types.merge(own);
    }
  }
  return types;
}

class CallKey : public ::testing::Test {
 public:
  // Checks that all argument types were tested. Types without a key make it
  // unusable: OfAnotherKindOfArgumentIsUnusable.
  static void TearDownTestSuite() {
    const auto& suite =
        *::testing::UnitTest::GetInstance()->current_test_suite();
    if (suite.test_to_run_count() < suite.total_test_count()) {
      return;
    }
    auto types = types_of_all_operators();
    for (const auto& seen : seen_types()) {
      types.erase(seen);
    }
    // Types before LibTorch 2.13: lists of types in OfTextDevicesAndDtypes.
    types.erase("str[]");
    types.erase("str[]?");
    EXPECT_EQ(
        types,
        (std::set<std::string>{
            "Storage",
            "Stream",
            "__torch__.torch.classes.rnn.CellParamsBase[]"}));
  }

 protected:
  // Runs `fn` on one rank, with x f64[3, 4] sharded and y replicated.
  static void with_operands(
      const std::function<void(const at::Tensor& x, const at::Tensor& y)>& fn) {
    run_ranks(1, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {1});
      const auto full = uniform({3, 4}, 1);
      fn(place(full, mesh, Shard(0)), place(full, mesh, Replicate()));
    });
  }
};

namespace op = at::_ops;

TEST_F(CallKey, OfTensors) {
  with_operands([](const at::Tensor& x, const at::Tensor& y) {
    const auto number = at::scalar_tensor(1.0, at::kDouble);
    auto wrapped = number.clone();
    wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
    expect_distinct({
        key<op::add_Tensor>(x, x, 1),
        key<op::add_Tensor>(x, y, 1),
        key<op::add_Tensor>(y, x, 1),
        key<op::add_Tensor>(x, number, 1),
        key<op::add_Tensor>(x, wrapped, 1),
        key<op::add_Tensor>(x, at::scalar_tensor(1.0, at::kFloat), 1),
        key<op::add_Tensor>(x, uniform({1}, 1), 1),
        key<op::add_Tensor>(x, uniform({4}, 1), 1),
        key<op::add_Tensor>(x, uniform({1, 4}, 1), 1),
        key<op::add_Tensor>(x, at::Tensor(), 1),
    });
    EXPECT_EQ(
        key<op::add_Tensor>(x, y, 1),
        key<op::add_Tensor>(x.clone(), y.clone(), 1));
  });
}

TEST_F(CallKey, OfOptionalTensorsAndFlags) {
  with_operands([](const at::Tensor& x, const at::Tensor& y) {
    using Norm = op::native_layer_norm_backward;
    const std::vector<c10::SymInt> shape = {4};
    const auto call = [&](const std::optional<at::Tensor>& weight,
                          std::array<bool, 3> wanted) {
      return key<Norm>(x, x, shape, y, y, weight, std::nullopt, wanted);
    };
    expect_distinct({
        call(std::nullopt, {true, true, true}),
        call(std::nullopt, {true, true, false}),
        call(at::Tensor(), {true, true, true}),
        call(y, {true, true, true}),
    });
  });
}

TEST_F(CallKey, OfLists) {
  with_operands([](const at::Tensor& x, const at::Tensor& y) {
    const std::vector<at::Tensor> xy = {x, y};
    const std::vector<at::Tensor> xyx = {x, y, x};
    expect_distinct({
        key<op::cat>(at::ITensorListRef(xy), 0),
        key<op::cat>(at::ITensorListRef(xy), 1),
        key<op::cat>(at::ITensorListRef(xyx), 0),
        key<op::cat>(at::ITensorListRef(xyx), 1),
    });
    const std::vector<int64_t> none;
    const std::vector<int64_t> first = {0};
    const std::vector<int64_t> both = {0, 1};
    using Sum = op::sum_dim_IntList;
    expect_distinct({
        key<Sum>(x, at::OptionalIntArrayRef(), false, std::nullopt),
        key<Sum>(x, at::OptionalIntArrayRef(none), false, std::nullopt),
        key<Sum>(x, at::OptionalIntArrayRef(first), false, std::nullopt),
        key<Sum>(x, at::OptionalIntArrayRef(first), true, std::nullopt),
        key<Sum>(x, at::OptionalIntArrayRef(both), false, std::nullopt),
        key<Sum>(x, at::OptionalIntArrayRef(first), false, at::kDouble),
        key<Sum>(x, at::OptionalIntArrayRef(first), false, at::kFloat),
    });
  });
}

TEST_F(CallKey, OfSizesThatMayBeSymbols) {
  with_operands([](const at::Tensor& x, const at::Tensor&) {
    const std::vector<c10::SymInt> flat = {12};
    const std::vector<c10::SymInt> pairs = {6, 2};
    expect_distinct({
        key<op::view>(x, c10::SymIntArrayRef(flat)),
        key<op::view>(x, c10::SymIntArrayRef(pairs)),
    });
    expect_distinct({
        key<op::slice_Tensor>(x, 0, std::nullopt, std::nullopt, 1),
        key<op::slice_Tensor>(x, 0, c10::SymInt(0), std::nullopt, 1),
        key<op::slice_Tensor>(x, 0, std::nullopt, c10::SymInt(0), 1),
        key<op::slice_Tensor>(x, 0, c10::SymInt(1), c10::SymInt(2), 1),
        key<op::slice_Tensor>(x, 0, c10::SymInt(1), c10::SymInt(2), 2),
    });
    using Upsample = op::upsample_nearest1d_vec;
    const std::vector<double> scale = {2.0};
    expect_distinct({
        key<Upsample>(x, at::OptionalSymIntArrayRef(flat), std::nullopt),
        key<Upsample>(x, at::OptionalSymIntArrayRef(), scale),
    });
  });
}

// Numbers contribute their type, and their value if the rule depends on it.
TEST_F(CallKey, OfNumbers) {
  with_operands([](const at::Tensor& x, const at::Tensor&) {
    EXPECT_EQ(key<op::mul_Scalar>(x, 2.0), key<op::mul_Scalar>(x, 3.0));
    expect_distinct({
        key<op::mul_Scalar>(x, 2.0),
        key<op::mul_Scalar>(x, 2),
        key<op::mul_Scalar>(x, true),
        key<op::mul_Scalar>(x, c10::complex<double>(2, 0)),
    });
    const std::vector<c10::SymInt> one = {1, 1};
    const auto pad = [&](const at::Scalar& value) {
      return key<op::constant_pad_nd>(x, c10::SymIntArrayRef(one), value);
    };
    expect_distinct({
        pad(0),
        pad(1),
        pad(false),
        pad(true),
        pad(0.0),
        pad(-0.0),
        pad(1.5),
        pad(c10::complex<double>(0, 1)),
        pad(c10::complex<double>(1, 0)),
    });
    expect_distinct({
        key<op::clamp>(x, std::nullopt, std::nullopt),
        key<op::clamp>(x, at::Scalar(1.0), std::nullopt),
        key<op::clamp>(x, std::nullopt, at::Scalar(1.0)),
        key<op::clamp>(x, std::nullopt, at::Scalar(1)),
    });
    EXPECT_EQ(key<op::dropout>(x, 0.5, true), key<op::dropout>(x, 0.25, true));
    EXPECT_NE(key<op::dropout>(x, 0.5, true), key<op::dropout>(x, 0.5, false));
  });
}

TEST_F(CallKey, OfTextDevicesAndDtypes) {
  with_operands([](const at::Tensor& x, const at::Tensor&) {
    expect_distinct({
        key<op::gelu>(x, "none"),
        key<op::gelu>(x, "tanh"),
        key<op::gelu>(x, ""),
        key<op::gelu>(x, std::string_view("\0", 1)),
        key<op::gelu>(x, "none or so"),
        key<op::gelu>(x, "none or soo"),
    });
    const auto copy = [&](std::optional<at::ScalarType> dtype,
                          std::optional<at::Layout> layout,
                          std::optional<at::Device> device,
                          std::optional<at::MemoryFormat> format) {
      return key<op::_to_copy>(
          x, dtype, layout, device, std::nullopt, false, format);
    };
    expect_distinct({
        copy({}, {}, {}, {}),
        copy(at::kDouble, {}, {}, {}),
        copy(at::kHalf, {}, {}, {}),
        copy({}, at::kStrided, {}, {}),
        copy({}, {}, at::Device("cpu"), {}),
        copy({}, {}, at::Device("cuda:0"), {}),
        copy({}, {}, at::Device("cuda:1"), {}),
        copy({}, {}, {}, at::MemoryFormat::Contiguous),
        copy({}, {}, {}, at::MemoryFormat::ChannelsLast),
    });
  });
}

TEST_F(CallKey, OfOptionalNumbersAndTexts) {
  with_operands([](const at::Tensor& x, const at::Tensor&) {
    // The decision depends on the scale only for attention.
    const auto attention = [&](std::optional<double> scale, double dropout) {
      return key<op::scaled_dot_product_attention>(
          x, x, x, std::nullopt, dropout, false, scale, false);
    };
    expect_distinct({
        attention(std::nullopt, 0.0),
        attention(0.0, 0.0),
        attention(0.5, 0.0),
        attention(0.5, 0.25),
    });
    EXPECT_EQ(
        key<op::nan_to_num>(x, 1.0, std::nullopt, 2.0),
        key<op::nan_to_num>(x, 3.0, std::nullopt, 4.0));
    EXPECT_NE(
        key<op::nan_to_num>(x, 1.0, std::nullopt, 2.0),
        key<op::nan_to_num>(x, 1.0, 2.0, std::nullopt));
    expect_distinct({
        key<op::fft_hfft>(x, c10::SymInt(4), 0, std::nullopt),
        key<op::fft_hfft>(x, c10::SymInt(4), 0, "ortho"),
        key<op::fft_hfft>(x, c10::SymInt(4), 0, ""),
        key<op::fft_hfft>(x, std::nullopt, 0, std::nullopt),
    });
    expect_distinct({
        key<op::repeat_interleave_self_int>(x, 2, std::nullopt, std::nullopt),
        key<op::repeat_interleave_self_int>(x, 2, 0, std::nullopt),
        key<op::repeat_interleave_self_int>(x, 2, 1, std::nullopt),
    });
    const auto like = [&](std::optional<bool> pinned) {
      return key<op::empty_like>(
          x, at::kDouble, std::nullopt, std::nullopt, pinned, std::nullopt);
    };
    expect_distinct({like(std::nullopt), like(false), like(true)});
  });
}

TEST_F(CallKey, OfWhatOthersHaveAsOptions) {
  with_operands([](const at::Tensor& x, const at::Tensor&) {
    const auto to = [&](const at::Device& device, at::ScalarType dtype) {
      return key<op::to_device>(x, device, dtype, false, false, std::nullopt);
    };
    expect_distinct({
        to(at::kCPU, at::kFloat),
        to(at::kCPU, at::kHalf),
        to(at::kMeta, at::kFloat),
    });
    expect_distinct({
        key<op::sym_is_contiguous>(x, at::MemoryFormat::Contiguous),
        key<op::sym_is_contiguous>(x, at::MemoryFormat::ChannelsLast),
    });
    const auto sparse = [&](at::Layout layout) {
      return key<op::_validate_sparse_compressed_tensor_args>(
          x, x, x, at::IntArrayRef({3, 4}), layout, std::nullopt);
    };
    expect_distinct({sparse(at::kSparseCsr), sparse(at::kSparseCsc)});
  });
}

TEST_F(CallKey, OfListsOfNumbersAndOptionalTensors) {
  with_operands([](const at::Tensor& x, const at::Tensor& y) {
    const std::vector<at::Tensor> xy = {x, y};
    const auto pow = [&](const std::vector<at::Scalar>& exponents) {
      return key<op::_foreach_pow_ScalarList>(xy, exponents);
    };
    // Without a rule, the decision depends on values.
    expect_distinct({
        pow({2.0, 3.0}),
        pow({2.0, 4.0}),
        pow({2.0}),
        pow({2.0, 3}),
        pow({2, 3}),
    });
    // No unboxed kernel takes such arguments.
    const detail::OpInfo info(c10::Dispatcher::singleton().findSchemaOrThrow(
        "aten::index", "Tensor"));
    add_types(info.op.schema(), seen_types());
    const auto index = [&](const std::vector<std::optional<at::Tensor>>& at) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& t : at) {
        list.push_back(t);
      }
      const auto boxed = detail::key_of(info, {x, c10::IValue(list)});
      EXPECT_TRUE(boxed.usable());
      return boxed.words().vec();
    };
    expect_distinct({
        index({}),
        index({x}),
        index({y}),
        index({x, y}),
        index({std::nullopt, x}),
        index({x, std::nullopt}),
    });
  });
}

TEST_F(CallKey, AGeneratorDecidesNothing) {
  with_operands([](const at::Tensor& x, const at::Tensor&) {
    const auto one = at::detail::createCPUGenerator(1);
    const auto two = at::detail::createCPUGenerator(2);
    EXPECT_EQ(key<op::bernoulli>(x, one), key<op::bernoulli>(x, two));
  });
}

// Short keys are equal to long ones, or unusable: if the call is too long, or
// if unboxed kernels cannot run it.
TEST_F(CallKey, AShortKeyIsUsableOrTheSame) {
  with_operands([](const at::Tensor& x, const at::Tensor&) {
    const auto before = KeyOf<op::cat>::short_keys;
    const std::vector<at::Tensor> few(21, x);
    key<op::cat>(at::ITensorListRef(few), 0);
    EXPECT_EQ(KeyOf<op::cat>::short_keys, before + 1);
    const std::vector<at::Tensor> many(22, x);
    key<op::cat>(at::ITensorListRef(many), 0);
    const std::vector<at::Tensor> plain = {x, uniform({3, 4}, 1)};
    key<op::cat>(at::ITensorListRef(plain), 0);
    EXPECT_EQ(KeyOf<op::cat>::short_keys, before + 1);
  });
}

// Boxed calls find the decisions of unboxed calls, and vice versa.
TEST_F(CallKey, BoxedCallsFindWhatUnboxedOnesDecided) {
  with_operands([](const at::Tensor& x, const at::Tensor& y) {
    const auto add =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
    const auto boxed = [&](const at::Tensor& a, const at::Tensor& b) {
      torch::jit::Stack stack = {a, b, at::Scalar(1)};
      add.callBoxed(&stack);
    };
    const auto made = [] { return detail::decision_counts().made; };
    const at::NoGradGuard no_grad;
    const auto before = made();
    x.add(y);
    EXPECT_EQ(made(), before + 1);
    boxed(x, y);
    EXPECT_EQ(made(), before + 1);
    boxed(y, x);
    y.add(x);
    EXPECT_EQ(made(), before + 2);
  });
}

// Calls with an argument of an unknown type are not cached.
TEST_F(CallKey, OfAnotherKindOfArgumentIsUnusable) {
  with_operands([](const at::Tensor& x, const at::Tensor&) {
    const detail::OpInfo info(
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::gelu", ""));
    const std::vector<c10::IValue> wrong = {x, c10::IValue(3)};
    EXPECT_FALSE(detail::key_of(info, wrong).usable());
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
