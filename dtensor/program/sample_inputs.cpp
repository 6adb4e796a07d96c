// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/sample_inputs_impl.h>

#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/error.h>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr const char* kSamples = "data/sample_inputs/";

[[noreturn]] void refuse_samples(
    const std::string& path,
    const std::string& why) {
  DTENSOR_THROW_VALUE(
      "[Program] {}: its sample inputs cannot be read: {}. Pass your own "
      "inputs.",
      path,
      why);
}

// Checks that the tensor lies within its storage. LibTorch's reader does not
// check the sizes, strides and offset of a file.
void check_within_storage(const at::Tensor& t, const std::string& path) {
  if (!t.defined() || t.layout() != at::kStrided || !t.has_storage()) {
    refuse_samples(path, "they contain a tensor that is not dense");
  }
  const auto elements =
      static_cast<int64_t>(t.storage().nbytes() / t.itemsize());
  int64_t last = t.storage_offset();
  bool fits = last >= 0 && t.numel() >= 0;
  for (int64_t d = 0; d < t.dim() && t.numel() > 0; ++d) {
    const auto steps = t.size(d) - 1;
    int64_t reach = 0;
    fits = fits && steps >= 0 && t.stride(d) >= 0 &&
        !__builtin_mul_overflow(steps, t.stride(d), &reach) &&
        !__builtin_add_overflow(last, reach, &last);
  }
  fits = fits && (t.numel() == 0 || last < elements);
  if (!fits) {
    refuse_samples(
        path,
        detail::format_text(
            "a tensor of shape {} is larger than its storage", t.sizes()));
  }
}

void collect_tensors(const c10::IValue& value, std::vector<at::Tensor>& all) {
  if (value.isTensor()) {
    all.push_back(value.toTensor());
  } else if (value.isTuple()) {
    for (const auto& item : value.toTupleRef().elements()) {
      collect_tensors(item, all);
    }
  } else if (value.isList()) {
    for (const auto& item : value.toListRef()) {
      collect_tensors(item, all);
    }
  } else if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    for (const auto& item : dict) {
      collect_tensors(item.value(), all);
    }
  }
}

std::vector<at::Tensor> tensors_in(
    const std::string& bytes,
    const std::string& path) {
  const NestedArchive archive(bytes, path);
  if (archive.sizes().count(kByteOrder) > 0) {
    check_byte_order(archive.read(kByteOrder), path, "its sample inputs");
  }
  const auto pickle = archive.read("data.pkl");
  if (const auto problem = pickle_problem(pickle, archive.sizes());
      !problem.empty()) {
    refuse_samples(path, problem);
  }
  std::vector<at::Tensor> tensors;
  collect_tensors(
      torch::jit::pickle_load({bytes.begin(), bytes.end()}), tensors);
  for (const auto& t : tensors) {
    check_within_storage(t, path);
  }
  return tensors;
}

} // namespace

std::vector<at::Tensor> read_sample_inputs(const Pt2Archive& archive) {
  const auto& path = archive.path();
  const auto names = archive.names_in(kSamples);
  DTENSOR_CHECK_VALUE(
      !names.empty(),
      "[Program] {} has no sample inputs. Pass your own inputs.",
      path);
  const auto bytes = archive.read(kSamples + names[0]);
  try {
    return tensors_in(bytes, path);
  } catch (const c10::ValueError&) {
    throw;
  } catch (const std::exception& error) {
    refuse_samples(path, first_line_of(error));
  }
}

// --- objects of a pickle -----------------------------------------------------

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

} // namespace

std::optional<std::string_view> pickled_name(std::string_view constant) {
  return constant.starts_with('c') ? std::optional(constant.substr(1))
                                   : std::nullopt;
}

std::optional<std::string_view> pickled_text(std::string_view constant) {
  return constant.starts_with('X')
      ? std::optional(constant.substr(1 + sizeof(uint32_t)))
      : std::nullopt;
}

// The digits are in base 256, the least significant first.
std::optional<uint64_t> pickled_integer(std::string_view constant) {
  const auto opcode = constant.substr(0, 1);
  const bool is_unsigned = opcode == "K" || opcode == "M";
  const bool is_long = opcode == "\x8a";
  if (!is_unsigned && !is_long && opcode != "J") {
    return std::nullopt;
  }
  const auto digits = constant.substr(is_long ? 2 : 1);
  uint64_t value = 0;
  if (digits.empty() || digits.size() > sizeof(value) ||
      (!is_unsigned && static_cast<int8_t>(digits.back()) < 0)) {
    return std::nullopt;
  }
  std::memcpy(&value, digits.data(), digits.size());
  return value;
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

Reach reach_of_node(
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
    refuse_pickle("its pickle has more than {} nested levels", kMaxPickleDepth);
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
        reaches[node] = reach_of_node(held, reaches, bytes);
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
