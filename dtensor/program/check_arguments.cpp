// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/check_arguments_impl.h>

#include <dtensor/error.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/result_type.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace dtensor::detail {
namespace {

// Arguments of a call by name.
class Arguments {
 public:
  Arguments(
      const c10::FunctionSchema& schema,
      c10::ArrayRef<c10::IValue> values)
      : schema_(schema),
        values_(values) {}

  const c10::IValue* find(std::string_view name) const {
    const auto index = schema_.argumentIndexWithName(name);
    return index && static_cast<size_t>(*index) < values_.size()
        ? &values_[static_cast<size_t>(*index)]
        : nullptr;
  }

  // Returns the tensor with that name. It is undefined if there is none.
  at::Tensor tensor(std::string_view name) const {
    const auto* value = find(name);
    return value != nullptr && value->isTensor() ? value->toTensor()
                                                 : at::Tensor();
  }

  int64_t integer(std::string_view name) const {
    const auto* value = find(name);
    return value != nullptr && value->isInt() ? value->toInt() : 0;
  }

  void check(bool fits, const char* what) const {
    DTENSOR_CHECK_VALUE(
        fits,
        "[Program] {} cannot be called: {}. Export the program again.",
        schema_.name(),
        what);
  }

 private:
  const c10::FunctionSchema& schema_;
  c10::ArrayRef<c10::IValue> values_;
};

void check_batch_norm(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> values) {
  const Arguments args(schema, values);
  const auto input = args.tensor("input");
  args.check(input.defined() && input.dim() >= 2, "its input has no channels");
  for (const auto* name : {"weight", "bias", "running_mean", "running_var"}) {
    const auto t = args.tensor(name);
    args.check(
        !t.defined() || t.numel() == input.size(1),
        "weight, bias and statistics must have one element per channel");
  }
}

void check_weight_norm(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> values) {
  const Arguments args(schema, values);
  const auto v = args.tensor("v");
  const auto g = args.tensor("g");
  const auto dim = args.integer("dim");
  args.check(
      v.defined() && g.defined() && -1 <= dim && dim < v.dim(),
      "v has no such dimension");
  args.check(
      g.numel() == (dim == -1 ? 1 : v.size(dim)),
      "g must have one element per slice of v");
}

bool is_broadcast_to(const at::Tensor& mask, std::array<int64_t, 4> sizes) {
  const auto missing = 4 - mask.dim();
  bool fits = missing >= 0;
  for (int64_t d = 0; fits && d < mask.dim(); ++d) {
    const auto size = mask.size(d);
    fits = size == 1 || size == sizes[static_cast<size_t>(d + missing)];
  }
  return fits;
}

void check_attention(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> values) {
  const Arguments args(schema, values);
  const auto q = args.tensor("query");
  const auto k = args.tensor("key");
  const auto v = args.tensor("value");
  const bool are_given = q.defined() && k.defined() && v.defined() &&
      q.dim() >= 2 && q.dim() == k.dim() && q.dim() == v.dim();
  args.check(are_given, "query, key and value differ in dimensions");
  args.check(
      q.size(-1) == k.size(-1) && k.size(-2) == v.size(-2),
      "the sizes of query, key and value differ");
  if (schema.name() == "aten::_scaled_dot_product_attention_math") {
    return; // of any dimension; it consists of operators that check
  }
  args.check(q.dim() == 4, "its query does not have 4 dimensions");
  args.check(
      q.size(0) == k.size(0) && q.size(0) == v.size(0) &&
          k.size(1) == v.size(1) && k.size(1) > 0 && q.size(1) % k.size(1) == 0,
      "the batches or heads of query, key and value differ");
  for (const auto* name : {"attn_mask", "attn_bias"}) {
    const auto mask = args.tensor(name);
    args.check(
        !mask.defined() ||
            is_broadcast_to(mask, {q.size(0), q.size(1), q.size(2), k.size(2)}),
        "its mask has other sizes than the products of query and key");
  }
}

// Checks scales: those of another output would take too much memory, and 32
// bits of their indices would overflow.
void check_upsample(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> values) {
  const Arguments args(schema, values);
  const auto input = args.tensor("self");
  const auto* sizes = args.find("output_size");
  if (!input.defined() || sizes == nullptr || !sizes->isIntList()) {
    return; // an overload that computes one from the other
  }
  const auto out = sizes->toIntVector();
  const std::array<std::vector<const char*>, 4> names = {
      {{},
       {"scales"},
       {"scales_h", "scales_w"},
       {"scales_d", "scales_h", "scales_w"}}};
  const auto dims = out.size();
  args.check(
      dims >= 1 && dims <= 3 && input.dim() == static_cast<int64_t>(dims) + 2,
      "its input and its output differ in dimensions");
  for (size_t d = 0; d < dims; ++d) {
    const auto* scale = args.find(names[dims][d]);
    if (scale == nullptr || !scale->isDouble()) {
      continue;
    }
    const auto size =
        static_cast<double>(input.size(static_cast<int64_t>(d) + 2));
    const auto expected = size * scale->toDouble();
    args.check(
        std::abs(expected - static_cast<double>(out[d])) <= 1,
        "its scales do not give its output's size");
  }
}

// True if the tensor or number is `value` somewhere.
bool contains(const c10::IValue& given, int64_t value) {
  if (given.isTensor()) {
    return given.toTensor().eq(value).any().item<bool>();
  }
  return given.isInt() && given.toInt() == value;
}

// The quotient of the least integer and -1 is not an integer of its width, and
// processors trap. Other widths are divided as int, and other devices do not
// trap.
void check_division(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> values) {
  const Arguments args(schema, values);
  const auto* mode = args.find("rounding_mode");
  const auto* other = args.find("other");
  const auto t = args.tensor("self");
  if (mode == nullptr || !mode->isString() || mode->toStringRef() != "trunc" ||
      other == nullptr || !t.defined() || !t.device().is_cpu()) {
    return;
  }
  const auto dtype = other->isTensor() ? at::result_type(t, other->toTensor())
                                       : at::result_type(t, other->toScalar());
  if (dtype != t.scalar_type() || (dtype != at::kInt && dtype != at::kLong)) {
    return;
  }
  const int64_t least = dtype == at::kInt ? std::numeric_limits<int32_t>::min()
                                          : std::numeric_limits<int64_t>::min();
  args.check(
      !contains(t, least) || !contains(*other, -1),
      "it divides the least integer by -1, which overflows");
}

} // namespace

ArgumentCheck argument_check(const c10::FunctionSchema& schema) {
  std::string_view name = schema.name();
  constexpr std::string_view kAten = "aten::";
  if (!name.starts_with(kAten)) {
    return nullptr;
  }
  name.remove_prefix(kAten.size());
  if (name == "batch_norm_update_stats" ||
      name.starts_with("native_batch_norm") ||
      name.starts_with("_native_batch_norm_legit") ||
      name.starts_with("_batch_norm_")) {
    return check_batch_norm;
  }
  if (name.starts_with("_weight_norm")) {
    return check_weight_norm;
  }
  if (name.starts_with("_scaled_dot_product_")) {
    return check_attention;
  }
  if (name.starts_with("_upsample_")) {
    return check_upsample;
  }
  if (name == "div" || name == "div_" || name == "divide" ||
      name == "divide_") {
    return check_division;
  }
  return nullptr;
}

} // namespace dtensor::detail
