// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/interpreter_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/shortened_impl.h>

#include <c10/util/StringUtil.h>

#include <map>

namespace dtensor::detail {
namespace {

// Describes the expected input, such as "f32[s77, 4]".
std::string expected(const GraphInput& input) {
  std::vector<std::string> sizes;
  for (const auto& size : input.sizes) {
    sizes.push_back(
        size.symbol.empty() ? std::to_string(size.value) : size.symbol);
  }
  return short_name(input.dtype) + "[" + shortened(c10::Join(", ", sizes)) +
      "]";
}

std::string limits_text(const std::string& symbol, const SymbolRange& range) {
  return detail::format_text(
      "{} from {}{}",
      shortened(symbol),
      range.least,
      range.most ? c10::str(" to ", *range.most) : std::string(" on"));
}

class Check {
 public:
  explicit Check(const ProgramState& state) : state_(state) {}

  void check(const GraphInput& input, const c10::IValue& given) {
    if (!input.is_tensor) {
      DTENSOR_CHECK_TYPE(
          given.isScalar(),
          "[Program] input {} of {} must be a number, got {}. Pass a number.",
          shortened(input.name),
          state_.path,
          given.tagKind());
      return;
    }
    DTENSOR_CHECK_TYPE(
        given.isTensor() && given.toTensor().defined(),
        "[Program] input {} of {} must be a tensor, {}, got {}. Pass a tensor.",
        shortened(input.name),
        state_.path,
        expected(input),
        given.tagKind());
    check_tensor(input, given.toTensor());
  }

 private:
  void check_tensor(const GraphInput& input, const at::Tensor& t) {
    // A program may be converted to another floating-point type, as in Python.
    const bool same_kind = c10::isFloatingType(input.dtype)
        ? c10::isFloatingType(t.scalar_type())
        : input.dtype == t.scalar_type();
    bool fits = same_kind && static_cast<size_t>(t.dim()) == input.sizes.size();
    std::string why;
    for (size_t d = 0; fits && d < input.sizes.size(); ++d) {
      fits = fits_size(input, d, t.size(static_cast<int64_t>(d)), why);
    }
    DTENSOR_CHECK_VALUE(
        fits,
        "[Program] input {} of {} is {}, but the program was exported for "
        "{}{}. Pass a tensor of that dtype and shape, or export the program "
        "with dynamic_shapes.",
        shortened(input.name),
        state_.path,
        shape_text(t.scalar_type(), t.sizes()),
        expected(input),
        why);
  }

  bool
  fits_size(const GraphInput& input, size_t d, int64_t size, std::string& why) {
    const auto& wanted = input.sizes[d];
    if (wanted.symbol.empty()) {
      return size == wanted.value;
    }
    const auto [known, is_new] =
        sizes_.try_emplace(wanted.symbol, Seen{size, input.name, d});
    if (known->second.size != size) {
      const auto& seen = known->second;
      why = detail::format_text(
          ", where {} is {} as in dim {} of {}",
          shortened(wanted.symbol),
          seen.size,
          seen.dim,
          shortened(seen.input));
      return false;
    }
    const auto range = state_.graph.symbols.find(wanted.symbol);
    if (range == state_.graph.symbols.end()) {
      return true;
    }
    // Default lower bound of a dynamic size. torch.export always writes 2,
    // although its programs also run with sizes 0 and 1.
    constexpr int64_t kUsualLeast = 2;
    const auto& [least, most] = range->second;
    if ((least > kUsualLeast && size < least) || (most && size > *most)) {
      why = ", " + limits_text(wanted.symbol, range->second);
      return false;
    }
    return true;
  }

  struct Seen {
    int64_t size = 0;
    std::string input;
    size_t dim = 0;
  };

  const ProgramState& state_;
  std::map<std::string, Seen> sizes_;
};

} // namespace

void check_inputs(
    const ProgramState& state,
    c10::ArrayRef<c10::IValue> inputs) {
  std::vector<std::string> names;
  for (const auto& input : state.graph.inputs) {
    if (input.kind == InputKind::kUser) {
      names.push_back(input.name);
    }
  }
  DTENSOR_CHECK_VALUE(
      names.size() == inputs.size(),
      "[Program] {} takes {} ({}), got {}. Pass them in this order.",
      state.path,
      pluralize(names.size(), "input"),
      shortened(c10::Join(", ", names), 1000),
      inputs.size());
  Check check(state);
  size_t next = 0;
  for (const auto& input : state.graph.inputs) {
    if (input.kind == InputKind::kUser) {
      check.check(input, inputs[next++]);
    }
  }
}

} // namespace dtensor::detail
