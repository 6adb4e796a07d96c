// SPDX-License-Identifier: BSD-3-Clause
// Tests calls with arguments on which LibTorch's operators read foreign memory
// or crash. torch.export writes these operators with arguments that fit.
#include "made_program.h"
#include "tests/error_of.h"
#include "tests/weights/files.h"

#include <dtensor/dtensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_program;
using test_text::error_of;
using test_weights::Folder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string integers(const std::string& values) {
  return R"({"as_ints": [)" + values + "]}";
}

std::string real(const std::string& value) {
  return R"({"as_float": )" + value + "}";
}

std::string text(const std::string& value) {
  return R"({"as_string": ")" + value + R"("})";
}

constexpr const char* kNone = R"({"as_none": true})";
constexpr const char* kTrue = R"({"as_bool": true})";
constexpr const char* kFalse = R"({"as_bool": false})";

// Returns a call of aten.full: a tensor of `value`. dtype 5 is int64, 4 int32
// and 7 float32.
std::string full(
    const std::string& name,
    const std::string& sizes,
    const std::string& value = R"({"as_float": 1.0})",
    int64_t dtype = 7) {
  return call(
      "torch.ops.aten.full.default",
      {{"size", integers(sizes)},
       {"fill_value", value},
       {"dtype", R"({"as_scalar_type": )" + std::to_string(dtype) + "}"}},
      {tensor(name)});
}

// Returns the error of running the calls and then `last`; empty if it runs.
std::string error_after(
    std::vector<std::string> calls,
    const std::string& target,
    const std::vector<Given>& given,
    size_t results = 1) {
  std::vector<std::string> outputs = {tensor("y")};
  for (size_t i = 1; i < results; ++i) {
    outputs.push_back(tensor("y" + std::to_string(i)));
  }
  calls.push_back(call("torch.ops.aten." + target, given, outputs));
  const Folder folder;
  const auto path = write_program(folder / "m.pt2", graph(calls));
  const auto error = error_of([&] {
    load_program(path).run({torch::ones({2, 3}), int64_t{3}});
  });
  return error == "nothing was thrown" ? "" : error;
}

TEST(HostileArguments, OfBatchNorms) {
  const auto error = [](const std::string& channels) {
    return error_after(
        {full("w", channels), full("s", "3")},
        "_native_batch_norm_legit_no_training.default",
        {{"input", tensor("x")},
         {"weight", tensor("w")},
         {"bias", tensor("s")},
         {"running_mean", tensor("s")},
         {"running_var", tensor("s")},
         {"momentum", real("0.1")},
         {"eps", real("1e-5")}},
        3);
  };
  EXPECT_EQ(error("3"), "");
  for (const auto* channels : {"1", "2", "4"}) {
    EXPECT_THAT(
        error(channels),
        AllOf(
            HasSubstr("aten::_native_batch_norm_legit_no_training cannot be "
                      "called: weight, bias and statistics must have one "
                      "element per channel"),
            HasSubstr("m.py:7")));
  }
  const auto stats = [](const std::string& mean) {
    return error_after(
        {full("w", "3"), full("m", mean)},
        "native_batch_norm.default",
        {{"input", tensor("x")},
         {"weight", kNone},
         {"bias", kNone},
         {"running_mean", tensor("m")},
         {"running_var", tensor("w")},
         {"training", kFalse},
         {"momentum", real("0.1")},
         {"eps", real("1e-5")}},
        3);
  };
  EXPECT_EQ(stats("3"), "");
  EXPECT_THAT(stats("1"), HasSubstr("one element per channel"));
}

TEST(HostileArguments, OfWeightNorms) {
  for (const auto* target :
       {"_weight_norm.default", "_weight_norm_interface.default"}) {
    const auto error = [&](const std::string& sizes, int64_t dim) {
      return error_after(
          {full("g", sizes)},
          target,
          {{"v", tensor("x")}, {"g", tensor("g")}, {"dim", integer(dim)}},
          std::string(target) == "_weight_norm.default" ? 1 : 2);
    };
    EXPECT_EQ(error("2, 1", 0), "");
    EXPECT_EQ(error("1, 3", 1), "");
    EXPECT_THAT(
        error("1", 0), HasSubstr("g must have one element per slice of v"));
    EXPECT_THAT(
        error("2, 1", 1), HasSubstr("g must have one element per slice of v"));
    EXPECT_THAT(error("2, 1", 2), HasSubstr("v has no such dimension"));
  }
}

TEST(HostileArguments, OfAttention) {
  const auto error = [](const std::string& q,
                        const std::string& k,
                        const std::string& v,
                        const std::string& mask = "1, 1, 4, 6") {
    return error_after(
        {full("q", q), full("k", k), full("v", v), full("m", mask)},
        "_scaled_dot_product_flash_attention_for_cpu.default",
        {{"query", tensor("q")},
         {"key", tensor("k")},
         {"value", tensor("v")},
         {"attn_mask", tensor("m")}},
        2);
  };
  EXPECT_EQ(error("1, 2, 4, 8", "1, 2, 6, 8", "1, 2, 6, 8"), "");
  EXPECT_EQ(error("1, 2, 4, 8", "1, 2, 6, 8", "1, 2, 6, 8", "4, 6"), "");
  const auto sizes = HasSubstr("the sizes of query, key and value differ");
  EXPECT_THAT(error("1, 2, 4, 8", "1, 2, 6, 8", "1, 2, 9, 8"), sizes);
  EXPECT_THAT(error("1, 2, 4, 8", "1, 2, 6, 8", "1, 2, 5, 8"), sizes);
  EXPECT_THAT(error("1, 2, 4, 8", "1, 2, 6, 9", "1, 2, 6, 8"), sizes);
  const auto batches =
      HasSubstr("the batches or heads of query, key and value differ");
  EXPECT_THAT(error("9, 2, 4, 8", "1, 2, 6, 8", "1, 2, 6, 8"), batches);
  EXPECT_THAT(error("1, 2, 4, 8", "1, 2, 6, 8", "1, 1, 6, 8"), batches);
  EXPECT_THAT(
      error("1, 2, 4, 8", "1, 2, 6, 8", "1, 2, 6, 8", "1, 1, 2, 2"),
      HasSubstr("its mask has other sizes"));
  // Consists of operators that check their arguments.
  const auto math = [](const std::string& value) {
    return error_after(
        {full("q", "2, 4, 8"), full("v", value)},
        "_scaled_dot_product_attention_math.default",
        {{"query", tensor("q")}, {"key", tensor("q")}, {"value", tensor("v")}},
        2);
  };
  EXPECT_EQ(math("2, 4, 8"), "");
  EXPECT_THAT(math("2, 5, 8"), sizes);
}

TEST(HostileArguments, OfUpsampling) {
  const auto error = [](const std::string& scale) {
    return error_after(
        {full("t", "1, 1, 4, 4")},
        "_upsample_bilinear2d_aa.default",
        {{"self", tensor("t")},
         {"output_size", integers("10, 10")},
         {"align_corners", kFalse},
         {"scales_h", real(scale)},
         {"scales_w", real(scale)}});
  };
  EXPECT_EQ(error("2.5"), "");
  EXPECT_EQ(error("2.7"), "");
  for (const auto* scale : {"1e-7", "-1.0", "1e300", "3.0", R"("NaN")"}) {
    EXPECT_THAT(
        error(scale), HasSubstr("its scales do not give its output's size"))
        << scale;
  }
  // Without scales, and with scales that give the size.
  EXPECT_EQ(
      error_after(
          {full("t", "1, 1, 4, 4")},
          "_upsample_bilinear2d_aa.default",
          {{"self", tensor("t")},
           {"output_size", integers("10, 10")},
           {"align_corners", kFalse},
           {"scales_h", kNone},
           {"scales_w", kNone}}),
      "");
  EXPECT_EQ(
      error_after(
          {full("t", "1, 1, 4, 4")},
          "_upsample_bilinear2d_aa.vec",
          {{"input", tensor("t")},
           {"output_size", kNone},
           {"align_corners", kFalse},
           {"scale_factors", R"({"as_floats": [2.0, 2.0]})"}}),
      "");
}

TEST(HostileArguments, OfRecurrentNetworks) {
  const auto error = [](const std::string& state,
                        const std::string& bias,
                        int64_t layers = 1) {
    const auto list = [](const std::vector<std::string>& names) {
      std::string all;
      for (const auto& name : names) {
        all += (all.empty() ? R"({"name": ")" : R"(, {"name": ")") + name +
            R"("})";
      }
      return R"({"as_tensors": [)" + all + "]}";
    };
    return error_after(
        {full("t", "3, 2, 4"),
         full("h", state),
         full("w", "20, 4"),
         full("u", "20, 5"),
         full("b", bias)},
        "lstm.input",
        {{"input", tensor("t")},
         {"hx", list({"h", "h"})},
         {"params", list({"w", "u", "b", "b"})},
         {"has_biases", kTrue},
         {"num_layers", integer(layers)},
         {"dropout", real("0.0")},
         {"train", kFalse},
         {"bidirectional", kFalse},
         {"batch_first", kFalse}},
        3);
  };
  EXPECT_EQ(error("1, 2, 5", "20"), "");
  const auto sizes =
      HasSubstr("the sizes of its weights do not fit its input and state");
  EXPECT_THAT(error("1, 2, 5", "1"), sizes);
  EXPECT_THAT(error("1, 2, 5000", "20"), sizes);
  EXPECT_THAT(
      error("1, 2, 5", "20", 5),
      HasSubstr("it has weights for another number of layers"));
  EXPECT_THAT(
      error("2, 2, 5", "20"),
      HasSubstr("its state has another number of layers"));
  EXPECT_THAT(
      error("1, 9, 5", "20"),
      HasSubstr("its input and state differ in batches"));
}

TEST(HostileArguments, OfGridSamplers) {
  const auto error = [](int64_t mode, int64_t padding) {
    return error_after(
        {full("t", "1, 1, 4, 4"), full("g", "1, 2, 2, 2")},
        "grid_sampler_2d.default",
        {{"input", tensor("t")},
         {"grid", tensor("g")},
         {"interpolation_mode", integer(mode)},
         {"padding_mode", integer(padding)},
         {"align_corners", kFalse}});
  };
  EXPECT_EQ(error(2, 2), "");
  EXPECT_THAT(error(9, 0), HasSubstr("it has an unknown mode"));
  EXPECT_THAT(error(0, -1), HasSubstr("it has an unknown mode"));
}

TEST(HostileArguments, OfIntegerDivision) {
  const auto error = [](int64_t dividend,
                        int64_t divisor,
                        int64_t dtype,
                        const std::string& mode) {
    return error_after(
        {full("a", "67", integer(dividend), dtype),
         full("b", "67", integer(divisor), dtype)},
        "div.Tensor_mode",
        {{"self", tensor("a")},
         {"other", tensor("b")},
         {"rounding_mode", text(mode)}});
  };
  const int64_t least = std::numeric_limits<int64_t>::min();
  const int64_t least_int = std::numeric_limits<int32_t>::min();
  const auto overflows =
      HasSubstr("it divides the least integer by -1, which overflows");
  EXPECT_THAT(error(least, -1, 5, "trunc"), overflows);
  EXPECT_THAT(error(least_int, -1, 4, "trunc"), overflows);
  EXPECT_EQ(error(least, -1, 5, "floor"), "");
  EXPECT_EQ(error(least, 1, 5, "trunc"), "");
  EXPECT_EQ(error(least + 1, -1, 5, "trunc"), "");
  EXPECT_EQ(error(least_int, -1, 5, "trunc"), "");
  EXPECT_EQ(error(-128, -1, 2, "trunc"), "");
  const auto by_number = [&](const std::string& target) {
    return error_after(
        {full("a", "67", integer(least), 5)},
        target,
        {{"self", tensor("a")},
         {"other", integer(-1)},
         {"rounding_mode", text("trunc")}});
  };
  EXPECT_THAT(by_number("div.Scalar_mode"), overflows);
  EXPECT_THAT(by_number("div_.Scalar_mode"), overflows);
  EXPECT_THAT(by_number("divide.Scalar_mode"), overflows);
}

} // namespace TEST_SOURCE
} // namespace dtensor
