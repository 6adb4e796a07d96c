// SPDX-License-Identifier: BSD-3-Clause
// Reads the arguments of calls. The file gives the kind of the Python value
// ("as_int"), and the operator's schema gives the type that it becomes.
#include <dtensor/program/read_graph_impl.h>

#include <ATen/ScalarOps.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <dtensor/format_text.h>

#include <array>
#include <limits>
#include <map>
#include <utility>

namespace dtensor::detail {
namespace {

using c10::IValue;
using c10::TypeKind;

const c10::Type& without_optional(const c10::Type& type) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional == nullptr ? type : *optional->getElementType();
}

int64_t memory_format_of(JsonView number) {
  constexpr std::array<at::MemoryFormat, 5> kFormats = {
      at::MemoryFormat::Preserve, // unknown
      at::MemoryFormat::Contiguous,
      at::MemoryFormat::ChannelsLast,
      at::MemoryFormat::ChannelsLast3d,
      at::MemoryFormat::Preserve};
  return static_cast<int64_t>(
      kFormats.at(number.unsigned_integer(kFormats.size() - 1)));
}

double float_of(JsonView number) {
  // JSON cannot express these numbers, so the file has words for them.
  static const std::map<std::string, double> words = {
      {"Infinity", std::numeric_limits<double>::infinity()},
      {"-Infinity", -std::numeric_limits<double>::infinity()},
      {"NaN", std::numeric_limits<double>::quiet_NaN()}};
  if (!number.is_text()) {
    return number.number();
  }
  const auto found = words.find(number.text());
  if (found == words.end()) {
    number.refuse("expected a number, got " + number.description());
  }
  return found->second;
}

// Returns true if the constant is valid for an argument of that type, or for an
// element of a list of that type.
bool fits(const IValue& value, const c10::Type& given_type) {
  const bool is_optional = given_type.kind() == TypeKind::OptionalType;
  if (value.isNone()) {
    return is_optional || given_type.kind() == TypeKind::AnyType;
  }
  switch (without_optional(given_type).kind()) {
    case TypeKind::AnyType:
      return true;
    case TypeKind::TensorType:
      return value.isTensor();
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return value.isInt();
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return value.isDouble();
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
      return value.isBool();
    case TypeKind::NumberType:
      return value.isScalar();
    case TypeKind::StringType:
      return value.isString();
    case TypeKind::DeviceObjType:
      return value.isDevice();
    default:
      return false;
  }
}

// Returns true if a graph value of this kind is valid for the type. The value
// of a number is unknown before the call.
bool fits(ValueKind kind, const c10::Type& type) {
  return type.kind() == TypeKind::AnyType ||
      type.kind() == TypeKind::TensorType ||
      (kind == ValueKind::kNumber && is_number(type.kind()));
}

class OperandReader {
 public:
  explicit OperandReader(const GraphReader& graph) : graph_(graph) {}

  Operand read(JsonView argument, const c10::Type& given_type) const {
    const auto& type = without_optional(given_type);
    const auto [kind, value] = argument.only_member();
    if (const auto* list = type.castRaw<c10::ListType>()) {
      return list_of(kind, value, *list->getElementType(), given_type);
    }
    if (const auto* option = option_of(type)) {
      return kind == option ? tensor_option(kind, value)
                            : fitting(constant(kind, value), given_type);
    }
    if (const auto named = named_value(kind, value)) {
      const auto slot = found(*named, type);
      return ValueOperand{slot, conversion(kind, type)};
    }
    return fitting(converted(constant(kind, value), type), given_type);
  }

 private:
  // Returns the file's key for a type that is a named value in the file and a
  // number for the operator.
  static const char* option_of(const c10::Type& type) {
    switch (type.kind()) {
      case TypeKind::ScalarTypeType:
        return "as_scalar_type";
      case TypeKind::LayoutType:
        return "as_layout";
      case TypeKind::MemoryFormatType:
        return "as_memory_format";
      default:
        return nullptr;
    }
  }

  struct NamedValue {
    JsonView name;
    ValueKind kind;
  };

  // Returns the name and kind if the argument is a value of the graph.
  static std::optional<NamedValue> named_value(
      const std::string& kind,
      JsonView value) {
    if (kind == "as_tensor") {
      return NamedValue{value.at("name"), ValueKind::kTensor};
    }
    if (kind == "as_optional_tensor") {
      const auto tensor = value.find("as_tensor");
      return tensor
          ? std::optional(NamedValue{tensor->at("name"), ValueKind::kTensor})
          : std::nullopt;
    }
    if (kind == "as_name") {
      return NamedValue{value, ValueKind::kNumber};
    }
    if (kind.starts_with("as_sym_")) {
      const auto name = value.find("as_name");
      return name ? std::optional(NamedValue{*name, ValueKind::kNumber})
                  : std::nullopt;
    }
    return std::nullopt;
  }

  Slot found(const NamedValue& value, const c10::Type& type) const {
    if (!fits(value.kind, type)) {
      graph_.refuse(detail::format_text(
          "the {}{} where {} is expected",
          value.kind == ValueKind::kTensor ? "tensor " : "number ",
          value.name.text(),
          type.annotation_str()));
    }
    return graph_.find(value.name, value.kind);
  }

  IValue fitting(IValue value, const c10::Type& type) const {
    if (!fits(value, type)) {
      graph_.refuse(detail::format_text(
          "a {} where {} is expected", value.tagKind(), type.annotation_str()));
    }
    return value;
  }

  static OperandConversion conversion(
      const std::string& kind,
      const c10::Type& type) {
    if (type.kind() == TypeKind::TensorType && kind.starts_with("as_sym_")) {
      return OperandConversion::kNumberToTensor;
    }
    return type.kind() == TypeKind::FloatType && kind == "as_sym_int"
        ? OperandConversion::kIntToFloat
        : OperandConversion::kNone;
  }

  IValue constant(const std::string& kind, JsonView value) const {
    if (kind == "as_none" || kind == "as_optional_tensor") {
      return {};
    }
    if (kind == "as_int") {
      return value.integer();
    }
    if (kind == "as_float") {
      return float_of(value);
    }
    if (kind == "as_bool") {
      return value.boolean();
    }
    if (kind == "as_string") {
      return value.text();
    }
    if (kind.starts_with("as_sym_")) {
      const auto [inner_kind, inner] = value.only_member();
      return constant(inner_kind, inner);
    }
    if (kind == "as_complex") {
      return c10::complex<double>(
          float_of(value.at("real")), float_of(value.at("imag")));
    }
    return tensor_option(kind, value);
  }

  IValue tensor_option(const std::string& kind, JsonView value) const {
    if (kind == "as_scalar_type") {
      return static_cast<int64_t>(graph_.dtype_of(value));
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
    graph_.refuse("an argument of unsupported kind " + shown_name(kind));
  }

  int64_t layout_of(JsonView number) const {
    constexpr int64_t kStridedNumber = 7;
    if (number.integer() != kStridedNumber) {
      graph_.refuse("a layout that is not strided");
    }
    return static_cast<int64_t>(c10::kStrided);
  }

  // Maps a device of the export to the device to run on. If the program was
  // exported for another device, values on the CPU stay on the CPU.
  c10::Device device_of(JsonView value) const {
    const auto device = read_device(value.at("type"));
    return device.is_meta() ? device : graph_.device();
  }

  static IValue converted(IValue value, const c10::Type& type) {
    const auto kind = type.kind();
    if (kind == TypeKind::TensorType && value.isScalar()) {
      return at::native::wrapped_scalar_tensor(value.toScalar());
    }
    if (kind == TypeKind::FloatType && (value.isInt() || value.isBool())) {
      return value.isInt() ? static_cast<double>(value.toInt())
                           : (value.toBool() ? 1.0 : 0.0);
    }
    if ((kind == TypeKind::IntType || kind == TypeKind::SymIntType) &&
        value.isBool()) {
      return static_cast<int64_t>(value.toBool());
    }
    return value;
  }

  Operand list_of(
      const std::string& kind,
      JsonView value,
      const c10::Type& element,
      const c10::Type& given_type) const {
    if (kind == "as_none") {
      return fitting(IValue(), given_type);
    }
    if (!value.is_array()) {
      graph_.refuse(shown_name(kind) + " instead of a list");
    }
    const bool optional = element.kind() == TypeKind::OptionalType;
    ListOperand list{kind_of(without_optional(element), optional), {}};
    bool constant = true;
    for (const auto& item : value.elements()) {
      list.items.push_back(item_of(kind, item, element));
      constant &= std::holds_alternative<IValue>(list.items.back());
    }
    return constant ? Operand(list.filled({})) : Operand(std::move(list));
  }

  // Parses an item of a list: {"name": "x"} in lists of tensors, 3 in lists of
  // ints, {"as_int": 3} in other lists.
  std::variant<IValue, Slot> item_of(
      const std::string& list_kind,
      JsonView item,
      const c10::Type& element) const {
    static const std::map<std::string, const char*> plain = {
        {"as_ints", "as_int"},
        {"as_floats", "as_float"},
        {"as_bools", "as_bool"},
        {"as_strings", "as_string"}};
    const auto& type = without_optional(element);
    if (list_kind == "as_tensors") {
      return found({item.at("name"), ValueKind::kTensor}, type);
    }
    if (const auto kind = plain.find(list_kind); kind != plain.end()) {
      return fitting(converted(constant(kind->second, item), type), element);
    }
    const auto [kind, value] = item.only_member();
    if (const auto named = named_value(kind, value)) {
      if (type.kind() == TypeKind::TensorType &&
          named->kind == ValueKind::kNumber) {
        graph_.refuse("a number in a list of tensors");
      }
      return found(*named, type);
    }
    return fitting(converted(constant(kind, value), type), element);
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
        graph_.refuse("a list of unsupported type " + element.str());
    }
  }

  const GraphReader& graph_;
};

} // namespace

bool is_number(c10::TypeKind kind) {
  switch (kind) {
    case TypeKind::IntType:
    case TypeKind::FloatType:
    case TypeKind::BoolType:
    case TypeKind::NumberType:
    case TypeKind::SymIntType:
    case TypeKind::SymFloatType:
    case TypeKind::SymBoolType:
      return true;
    default:
      return false;
  }
}

Operand read_operand(
    JsonView argument,
    const c10::TypePtr& type,
    const GraphReader& graph) {
  return OperandReader(graph).read(argument, *type);
}

} // namespace dtensor::detail
