// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/check_arguments_impl.h>

#include <dtensor/error.h>
#include <dtensor/parallel/plan/module_names_impl.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/result_type.h>

#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>
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

  const std::string& operator_name() const {
    return schema_.name();
  }

  const c10::IValue* find(std::string_view name) const {
    const auto index = schema_.argumentIndexWithName(name);
    return index && static_cast<size_t>(*index) < values_.size()
        ? &values_[static_cast<size_t>(*index)]
        : nullptr;
  }

  // Returns the tensor with that name; undefined if there is none.
  at::Tensor tensor(std::string_view name) const {
    const auto* value = find(name);
    return value != nullptr && value->isTensor() ? value->toTensor()
                                                 : at::Tensor();
  }

  int64_t integer(std::string_view name) const {
    const auto* value = find(name);
    return value != nullptr && value->isInt() ? value->toInt() : 0;
  }

  bool flag(std::string_view name) const {
    const auto* value = find(name);
    return value != nullptr && value->isBool() && value->toBool();
  }

  // Returns the tensors of a list, or a single tensor.
  std::vector<at::Tensor> tensors(std::string_view name) const {
    const auto* value = find(name);
    return value != nullptr && value->isTensorList() ? value->toTensorVector()
        : value != nullptr && value->isTensor()
        ? std::vector<at::Tensor>{value->toTensor()}
        : std::vector<at::Tensor>();
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

void check_batch_norm(const Arguments& args) {
  const auto input = args.tensor("input");
  args.check(input.defined() && input.dim() >= 2, "its input has no channels");
  for (const auto* name : {"weight", "bias", "running_mean", "running_var"}) {
    const auto t = args.tensor(name);
    args.check(
        !t.defined() || t.numel() == input.size(1),
        "weight, bias and statistics must have one element per channel");
  }
}

void check_weight_norm(const Arguments& args) {
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

void check_attention(const Arguments& args) {
  const auto q = args.tensor("query");
  const auto k = args.tensor("key");
  const auto v = args.tensor("value");
  const bool are_given = q.defined() && k.defined() && v.defined() &&
      q.dim() >= 2 && q.dim() == k.dim() && q.dim() == v.dim();
  args.check(are_given, "query, key and value differ in dimensions");
  args.check(
      q.size(-1) == k.size(-1) && k.size(-2) == v.size(-2),
      "the sizes of query, key and value differ");
  if (args.operator_name().ends_with("_math")) {
    return; // of any dimension; composed of operators that check
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

// Checks scales. The scales of another output would take too much memory, or
// indices of 32 bits would overflow.
void check_upsample(const Arguments& args) {
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

// Checks the weights of one layer of a recurrent network, in one direction.
// `gates` blocks of `hidden` rows compute the next state.
struct RnnSizes {
  int64_t gates = 1;
  int64_t hidden = 0;
  int64_t state = 0; // less than hidden with a projection
  size_t weights = 2;
};

bool has_sizes(const at::Tensor& t, const std::vector<int64_t>& sizes) {
  return t.defined() && t.sizes() == at::IntArrayRef(sizes);
}

bool fits(
    const RnnSizes& rnn,
    int64_t input,
    c10::ArrayRef<at::Tensor> weights) {
  const auto rows = rnn.gates * rnn.hidden;
  bool fits = has_sizes(weights[0], {rows, input}) &&
      has_sizes(weights[1], {rows, rnn.state});
  size_t next = 2;
  if (weights.size() >= 4) {
    fits =
        fits && has_sizes(weights[2], {rows}) && has_sizes(weights[3], {rows});
    next = 4;
  }
  return next == weights.size()
      ? fits
      : fits && has_sizes(weights[next], {rnn.state, rnn.hidden});
}

void check_rnn_weights(
    const Arguments& args,
    const RnnSizes& rnn,
    int64_t input) {
  const auto weights = args.tensors("params");
  const auto layers = args.integer("num_layers");
  const auto directions = args.flag("bidirectional") ? 2 : 1;
  args.check(
      0 < layers && layers <= static_cast<int64_t>(weights.size()) &&
          weights.size() ==
              static_cast<size_t>(layers * directions) * rnn.weights,
      "it has weights for another number of layers");
  for (size_t i = 0; i < weights.size(); i += rnn.weights) {
    const auto cell = static_cast<int64_t>(i / rnn.weights);
    args.check(
        fits(
            rnn,
            cell < directions ? input : rnn.state * directions,
            c10::ArrayRef<at::Tensor>(weights).slice(i, rnn.weights)),
        "the sizes of its weights do not fit its input and state");
  }
  for (const auto& state : args.tensors("hx")) {
    args.check(
        state.size(0) == layers * directions,
        "its state has another number of layers");
  }
}

// LSTM, GRU and RNN, with a batch of one length or packed sequences.
void check_rnn(const Arguments& args) {
  const bool is_packed = args.find("batch_sizes") != nullptr;
  const bool is_lstm = args.operator_name().ends_with("lstm");
  const auto input = args.tensor(is_packed ? "data" : "input");
  const auto states = args.tensors("hx");
  args.check(
      input.defined() && input.dim() == (is_packed ? 2 : 3) &&
          states.size() == (is_lstm ? 2U : 1U) && states[0].dim() == 3 &&
          states.back().dim() == 3 &&
          states[0].size(1) == states.back().size(1),
      "its input or state has no batches");
  args.check(
      is_packed
          ? args.tensor("batch_sizes").numel() > 0
          : input.size(args.flag("batch_first") ? 0 : 1) == states[0].size(1),
      "its input and state differ in batches");
  RnnSizes rnn;
  rnn.gates = is_lstm ? 4 : (args.operator_name().ends_with("gru") ? 3 : 1);
  rnn.hidden = states.back().size(2);
  rnn.state = states[0].size(2);
  rnn.weights =
      (args.flag("has_biases") ? 4U : 2U) + (rnn.state == rnn.hidden ? 0U : 1U);
  check_rnn_weights(args, rnn, input.size(-1));
}

// Checks the modes, because other modes return uninitialized memory.
void check_grid_sampler(const Arguments& args) {
  for (const auto* name : {"interpolation_mode", "padding_mode"}) {
    const auto mode = args.integer(name);
    args.check(0 <= mode && mode <= 2, "it has an unknown mode");
  }
}

// True if the number, or an element of the tensor, is `value`.
bool contains(const c10::IValue& given, int64_t value) {
  if (given.isTensor()) {
    return given.toTensor().eq(value).any().item<bool>();
  }
  return given.isInt() && given.toInt() == value;
}

// The quotient of the smallest integer and -1 does not fit into the integer's
// width, and processors trap. Narrower integers are divided as int, and other
// devices do not trap.
void check_division(const Arguments& args) {
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

template <void (*check)(const Arguments&)>
void check_call(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> args) {
  check(Arguments(schema, args));
}

// Operators of aten, by a pattern of their names.
constexpr std::array<std::pair<std::string_view, ArgumentCheck>, 16> kChecks = {
    {{"batch_norm_update_stats", check_call<check_batch_norm>},
     {"native_batch_norm*", check_call<check_batch_norm>},
     {"_native_batch_norm_legit*", check_call<check_batch_norm>},
     {"_batch_norm_*", check_call<check_batch_norm>},
     {"_weight_norm*", check_call<check_weight_norm>},
     {"_scaled_dot_product_*", check_call<check_attention>},
     {"_upsample_*", check_call<check_upsample>},
     {"lstm", check_call<check_rnn>},
     {"gru", check_call<check_rnn>},
     {"rnn_tanh", check_call<check_rnn>},
     {"rnn_relu", check_call<check_rnn>},
     {"grid_sampler*", check_call<check_grid_sampler>},
     {"div", check_call<check_division>},
     {"div_", check_call<check_division>},
     {"divide", check_call<check_division>},
     {"divide_", check_call<check_division>}}};

} // namespace

ArgumentCheck argument_check(const c10::FunctionSchema& schema) {
  constexpr std::string_view kAten = "aten::";
  std::string_view name = schema.name();
  if (!name.starts_with(kAten)) {
    return nullptr;
  }
  name.remove_prefix(kAten.size());
  for (const auto& [pattern, check] : kChecks) {
    if (matches_glob(pattern, name)) {
      return check;
    }
  }
  return nullptr;
}

} // namespace dtensor::detail
