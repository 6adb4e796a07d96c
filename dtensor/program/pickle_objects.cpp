// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/pickle_objects_impl.h>

#include <c10/core/ScalarType.h>
#include <dtensor/format_text.h>
#include <dtensor/program/sample_inputs_impl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <utility>

namespace dtensor::detail {
namespace {

// Functions that LibTorch's reader can call without making a tensor outside its
// storage. The reader checks sparse and quantized tensors less than dense
// tensors.
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

// Reads from an offset of the pickle. Values beyond the end of the pickle are 0
// and empty.
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

namespace {

struct Reach {
  uint32_t levels = 0; // 0: not known
  uint64_t visits = 1;
};

Reach reach_of(
    const std::vector<PickledItem>& held,
    const std::vector<Reach>& reaches,
    size_t bytes) {
  Reach reach{1, 1};
  for (const auto& item : held) {
    const auto& child = reaches[item.node];
    reach.levels = std::max(reach.levels, child.levels + 1);
    reach.visits += child.visits;
    if (reach.visits > kMaxPickledObjects + bytes) {
      refuse_pickle(
          "its pickle repeats objects so often that they are more than its "
          "size allows");
    }
  }
  if (reach.levels > kMaxPickleDepth + 1) {
    refuse_pickle(detail::format_text(
        "its pickle has more than {} nested levels", kMaxPickleDepth));
  }
  return reach;
}

} // namespace

// Visits the objects depth first, without recursion.
void check_reach(const std::vector<PickledObject>& nodes, size_t bytes) {
  std::vector<Reach> reaches(nodes.size());
  std::vector<bool> is_open(nodes.size(), false);
  std::vector<std::pair<PickleNode, size_t>> way;
  for (PickleNode root = 0; root < nodes.size(); ++root) {
    way.emplace_back(root, 0);
    while (!way.empty()) {
      auto& [node, next] = way.back();
      const auto& held = nodes[node].held;
      is_open[node] = true;
      if (reaches[node].levels != 0 || next == held.size()) {
        reaches[node] = reach_of(held, reaches, bytes);
        is_open[node] = false;
        way.pop_back();
        continue;
      }
      const auto child = held[next++].node;
      if (is_open[child]) {
        refuse_pickle("an object of its pickle contains itself");
      }
      if (reaches[child].levels == 0) {
        way.emplace_back(child, 0);
      }
    }
  }
}

} // namespace dtensor::detail
