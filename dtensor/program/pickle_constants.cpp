// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/pickle_constants_impl.h>

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>

namespace dtensor::detail {
namespace {

// Functions that LibTorch's reader can call without a tensor outside its
// storage. It checks sparse and quantized tensors less than dense ones.
constexpr std::array<std::string_view, 4> kFunctions = {
    "torch._utils\n_rebuild_tensor_v2\n",
    "torch._utils\n_rebuild_parameter\n",
    "torch\ndevice\n",
    "collections\nOrderedDict\n"};

std::map<std::string, uint64_t, std::less<>> make_storage_types() {
  std::map<std::string, uint64_t, std::less<>> types;
  for (const auto dtype :
       {at::kByte,
        at::kChar,
        at::kShort,
        at::kInt,
        at::kLong,
        at::kHalf,
        at::kFloat,
        at::kDouble,
        at::kComplexHalf,
        at::kComplexFloat,
        at::kComplexDouble,
        at::kBool,
        at::kBFloat16}) {
    const std::string name = c10::toString(dtype);
    types.emplace(
        "torch\n" + name + "Storage\n",
        static_cast<uint64_t>(c10::elementSize(dtype)));
  }
  return types;
}

// Reads from an offset of the pickle. The values are 0 and empty beyond its
// end.
class Constant {
 public:
  Constant(std::string_view pickle, size_t at)
      : rest_(pickle.substr(std::min(at, pickle.size()))) {}

  std::string_view take(size_t count) {
    const auto taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view take_line() {
    const auto end = rest_.find('\n');
    return take(end == std::string_view::npos ? end : end + 1);
  }

  template <class Number>
  Number number() {
    Number value{};
    const auto bytes = take(sizeof(Number));
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }

 private:
  std::string_view rest_;
};

std::optional<uint64_t> long_integer(std::string_view digits) {
  uint64_t value = 0;
  if (digits.empty() || digits.size() > sizeof(value) ||
      static_cast<int8_t>(digits.back()) < 0) {
    return std::nullopt;
  }
  std::memcpy(&value, digits.data(), digits.size());
  return value;
}

} // namespace

std::optional<std::string_view> pickled_name(
    std::string_view pickle,
    size_t at) {
  Constant constant(pickle, at);
  if (constant.take(1) != "c") {
    return std::nullopt;
  }
  const auto module = constant.take_line();
  const auto name = constant.take_line();
  return pickle.substr(at + 1, module.size() + name.size());
}

std::optional<std::string_view> pickled_text(
    std::string_view pickle,
    size_t at) {
  Constant constant(pickle, at);
  return constant.take(1) == "X"
      ? std::optional(constant.take(constant.number<uint32_t>()))
      : std::nullopt;
}

std::optional<uint64_t> pickled_integer(std::string_view pickle, size_t at) {
  Constant constant(pickle, at);
  const auto opcode = constant.take(1);
  if (opcode == "K") {
    return constant.number<uint8_t>();
  }
  if (opcode == "M") {
    return constant.number<uint16_t>();
  }
  if (opcode == "J") {
    const auto value = constant.number<int32_t>();
    return value < 0 ? std::nullopt
                     : std::optional(static_cast<uint64_t>(value));
  }
  return opcode == "\x8a"
      ? long_integer(constant.take(constant.number<uint8_t>()))
      : std::nullopt;
}

bool is_pickled_function(std::string_view name) {
  return std::ranges::find(kFunctions, name) != kFunctions.end();
}

std::optional<uint64_t> storage_item_bytes(std::string_view name) {
  static const auto types = make_storage_types();
  const auto found = types.find(name);
  return found == types.end() ? std::nullopt : std::optional(found->second);
}

} // namespace dtensor::detail
