// SPDX-License-Identifier: BSD-3-Clause
// Arguments of calls. The file says what was given in Python ("as_int"), the
// operator's schema what it takes.
#include <dtensor/program/read_graph_impl.h>
#include <dtensor/weights/weight_format_impl.h>

#include <ATen/ScalarOps.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <nlohmann/json.hpp>

#include <array>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

using c10::IValue;
using c10::TypeKind;
using Json = nlohmann::json;

const c10::Type& without_optional(const c10::Type& type) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional == nullptr ? type : *optional->getElementType();
}

int64_t memory_format_of(const Json& number) {
  constexpr std::array<at::MemoryFormat, 5> kFormats = {
      at::MemoryFormat::Preserve, // unknown
      at::MemoryFormat::Contiguous,
      at::MemoryFormat::ChannelsLast,
      at::MemoryFormat::ChannelsLast3d,
      at::MemoryFormat::Preserve};
  return static_cast<int64_t>(kFormats.at(number.get<size_t>()));
}

double float_of(const Json& number) {
  // JSON has no such numbers, so they are words there.
  static const std::map<std::string, double> words = {
      {"Infinity", std::numeric_limits<double>::infinity()},
      {"-Infinity", -std::numeric_limits<double>::infinity()},
      {"NaN", std::numeric_limits<double>::quiet_NaN()}};
  return number.is_string() ? words.at(number.get<std::string>())
                            : number.get<double>();
}

class OperandReader {
 public:
  explicit OperandReader(const ArgumentContext& context) : context_(context) {}

  Operand read(const Json& argument, const c10::Type& given_type) const {
    const auto& type = without_optional(given_type);
    const auto kind = argument.begin().key();
    const auto& value = argument.begin().value();
    if (const auto* list = type.castRaw<c10::ListType>()) {
      return list_of(
          kind,
          value,
          without_optional(*list->getElementType()),
          list->getElementType()->kind() == TypeKind::OptionalType);
    }
    if (auto slot = value_of(kind, value)) {
      return ValueOperand{*slot, conversion(kind, type)};
    }
    return converted(constant(kind, value), type);
  }

 private:
  // The slot of what is a value of the graph.
  std::optional<Slot> value_of(const std::string& kind, const Json& value)
      const {
    if (kind == "as_tensor") {
      return context_.find(value.at("name"));
    }
    if (kind == "as_optional_tensor" && value.contains("as_tensor")) {
      return context_.find(value.at("as_tensor").at("name"));
    }
    if (kind.starts_with("as_sym_") && value.contains("as_name")) {
      return context_.find(value.at("as_name"));
    }
    return std::nullopt;
  }

  static Conversion conversion(const std::string& kind, const c10::Type& type) {
    if (type.kind() == TypeKind::TensorType && kind.starts_with("as_sym_")) {
      return Conversion::kNumberToTensor;
    }
    return type.kind() == TypeKind::FloatType && kind == "as_sym_int"
        ? Conversion::kIntToFloat
        : Conversion::kNone;
  }

  IValue constant(const std::string& kind, const Json& value) const {
    if (kind == "as_none" || kind == "as_optional_tensor") {
      return {};
    }
    if (kind == "as_int") {
      return value.get<int64_t>();
    }
    if (kind == "as_float") {
      return float_of(value);
    }
    if (kind == "as_bool") {
      return value.get<bool>();
    }
    if (kind == "as_string") {
      return value.get<std::string>();
    }
    if (kind.starts_with("as_sym_")) {
      return constant(value.begin().key(), value.begin().value());
    }
    if (kind == "as_complex") {
      return c10::complex<double>(
          float_of(value.at("real")), float_of(value.at("imag")));
    }
    return tensor_option(kind, value);
  }

  IValue tensor_option(const std::string& kind, const Json& value) const {
    if (kind == "as_scalar_type") {
      return dtype_of(value);
    }
    if (kind == "as_layout") {
      return layout_of(value);
    }
    if (kind == "as_memory_format") {
      return memory_format_of(value);
    }
    if (kind == "as_device") {
      return device_of(value);
    }
    context_.refuse("an argument of kind " + kind);
  }

  int64_t dtype_of(const Json& number) const {
    const auto* format = exported_format(number.get<int64_t>());
    if (format == nullptr) {
      context_.refuse("a dtype of number " + number.dump());
    }
    return static_cast<int64_t>(format->dtype);
  }

  int64_t layout_of(const Json& number) const {
    constexpr int64_t kStridedNumber = 7;
    if (number.get<int64_t>() != kStridedNumber) {
      context_.refuse("a layout that is not strided");
    }
    return static_cast<int64_t>(c10::kStrided);
  }

  // The program runs elsewhere than it was exported; what it keeps on the CPU
  // although it was exported for another device stays there.
  c10::Device device_of(const Json& value) const {
    c10::Device device(value.at("type").get<std::string>());
    return device.is_meta() ? device : context_.device();
  }

  static IValue converted(IValue value, const c10::Type& type) {
    const auto kind = type.kind();
    if (kind == TypeKind::TensorType && value.isScalar()) {
      return at::native::wrapped_scalar_tensor(value.toScalar());
    }
    if (kind == TypeKind::FloatType && value.isInt()) {
      return static_cast<double>(value.toInt());
    }
    return value;
  }

  Operand list_of(
      const std::string& kind,
      const Json& value,
      const c10::Type& element,
      bool optional) const {
    if (kind == "as_none") {
      return IValue();
    }
    if (!value.is_array()) {
      context_.refuse("no list but " + kind);
    }
    ListOperand list{kind_of(element, optional), {}};
    const auto item_kind = kind == "as_ints" ? "as_int"
        : kind == "as_floats"                ? "as_float"
        : kind == "as_bools"                 ? "as_bool"
        : kind == "as_strings"               ? "as_string"
                                             : "";
    bool constant = true;
    for (const auto& item : value) {
      if (*item_kind != '\0') {
        list.items.emplace_back(
            converted(this->constant(item_kind, item), element));
        continue;
      }
      list.items.push_back(item_of(kind, item, element));
      constant &= std::holds_alternative<IValue>(list.items.back());
    }
    return constant ? Operand(make_list(list, {})) : Operand(std::move(list));
  }

  // {"name": "x"} of tensors, {"as_int": 3} of others.
  std::variant<IValue, Slot> item_of(
      const std::string& kind,
      const Json& item,
      const c10::Type& element) const {
    if (kind == "as_tensors") {
      return context_.find(item.at("name"));
    }
    const auto& key = item.begin().key();
    const auto& value = item.begin().value();
    if (key == "as_name") {
      return context_.find(value);
    }
    if (key == "as_tensor") {
      return context_.find(value.at("name"));
    }
    return converted(constant(key, value), element);
  }

  ListOf kind_of(const c10::Type& element, bool optional) const {
    switch (element.kind()) {
      case TypeKind::TensorType:
        return optional ? ListOf::kOptionalTensor : ListOf::kTensor;
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return ListOf::kInt;
      case TypeKind::FloatType:
        return ListOf::kFloat;
      case TypeKind::BoolType:
        return ListOf::kBool;
      case TypeKind::NumberType:
        return ListOf::kNumber;
      default:
        context_.refuse("a list of " + element.str());
    }
  }

  const ArgumentContext& context_;
};

} // namespace

IValue make_list(const ListOperand& list, c10::ArrayRef<IValue> values) {
  const auto at = [&](const std::variant<IValue, Slot>& item) -> const IValue& {
    const auto* slot = std::get_if<Slot>(&item);
    return slot == nullptr ? std::get<IValue>(item) : values[*slot];
  };
  const auto filled = [&](auto made, const auto& get) {
    made.reserve(list.items.size());
    for (const auto& item : list.items) {
      made.push_back(get(at(item)));
    }
    return IValue(std::move(made));
  };
  switch (list.of) {
    case ListOf::kTensor:
      return filled(c10::List<at::Tensor>(), [](const IValue& v) {
        return v.toTensor();
      });
    case ListOf::kOptionalTensor:
      return filled(
          c10::List<std::optional<at::Tensor>>(),
          [](const IValue& v) { return v.toOptional<at::Tensor>(); });
    case ListOf::kInt:
      return filled(
          c10::List<int64_t>(), [](const IValue& v) { return v.toInt(); });
    case ListOf::kFloat:
      return filled(c10::List<double>(), [](const IValue& v) {
        return v.isInt() ? static_cast<double>(v.toInt()) : v.toDouble();
      });
    case ListOf::kBool:
      return filled(
          c10::List<bool>(), [](const IValue& v) { return v.toBool(); });
    case ListOf::kNumber:
      return filled(
          c10::impl::GenericList(c10::NumberType::get()),
          [](const IValue& v) { return v; });
  }
  return {};
}

Operand read_operand(
    const Json& argument,
    const c10::TypePtr& type,
    const ArgumentContext& context) {
  return OperandReader(context).read(argument, *type);
}

} // namespace dtensor::detail
