// SPDX-License-Identifier: BSD-3-Clause
// Sample inputs of an exported program: a pickle in an archive within the file.
// The pickle has limits of nesting and repetition, and its tensors must fit
// their records. LibTorch's reader has no such limits. There, nested lists are
// freed recursively, and a list that contains itself is never freed.
#pragma once

#include <dtensor/format_text.h>
#include <dtensor/weights/pt2_archive_impl.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Maximum nesting of lists, tuples and dictionaries in a pickle.
constexpr size_t kMaxPickleDepth = 100;
/// Maximum number of lists, tuples, dictionaries and tensors in a pickle.
constexpr size_t kMaxPickledObjects = 1000000;
/// Maximum bytes of storages that are read: at most kMaxStorageBytes in total,
/// and each record at most kMostStorageUses times.
constexpr uint64_t kMaxStorageBytes = uint64_t{64} << 20;
constexpr uint64_t kMostStorageUses = 16;

/// Returns the reason why a pickle is refused, or an empty text. A pickle is
/// refused if:
/// - it nests deeper than kMaxPickleDepth, or contains itself,
/// - it repeats objects so often that a reader would visit many more objects
///   than the pickle has bytes,
/// - a tensor's storage has another size than its record in the archive,
/// - it is not a pickle of tensors, numbers, texts and containers as
///   torch.save() writes it.
/// Time and memory are proportional to the pickle's size.
std::string pickle_problem(std::string_view pickle, const RecordSizes& records);

/// Returns the tensors of the sample inputs. Tensors in lists and dictionaries
/// are listed one after the other. Throws ValueError if the file has no sample
/// inputs, or if they cannot be read: the pickle is refused or larger than the
/// record, a tensor reaches outside its storage, or bytes are in big-endian
/// order.
std::vector<at::Tensor> read_sample_inputs(const Pt2Archive& archive);

// Objects of a pickle, with the properties that a safe reader needs.

/// Index in the list of a pickle's objects.
using PickleNode = uint32_t;
constexpr PickleNode kLeaf = 0; // of all constants
constexpr PickleNode kMark = UINT32_MAX;

/// An object on the stack or in another object.
struct PickledItem {
  PickleNode node = kLeaf;
  std::string_view constant; // its opcode and bytes; empty for other objects
};

enum class PickledKind : uint8_t { kConstant, kTuple, kList, kDict, kOther };

struct PickledObject {
  PickledKind kind = PickledKind::kConstant;
  std::vector<PickledItem> held = {};
};

/// Exception whose text is the problem.
class PickleProblem final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void refuse_pickle(const std::string& why) {
  throw PickleProblem(why);
}
template <class First, class... Others>
[[noreturn]] void refuse_pickle(
    TextFormat<1 + sizeof...(Others)> why,
    const First& value,
    const Others&... values) {
  refuse_pickle(format_text(why, value, values...));
}

/// Throws PickleProblem for objects that nest too deep or form a cycle. Also
/// throws if objects share others so often that a reader, which visits them
/// each time, would visit many more objects than the pickle has bytes.
void check_reach(const std::vector<PickledObject>& nodes, size_t bytes);

// Values of constants, which begin with the opcode.

/// Returns the name of a class or function: "torch\nFloatStorage\n". Returns
/// nothing for other objects.
std::optional<std::string_view> pickled_name(std::string_view constant);
/// Returns a text; nothing for other objects.
std::optional<std::string_view> pickled_text(std::string_view constant);
/// Returns an integer; nothing for other objects and negative integers.
std::optional<uint64_t> pickled_integer(std::string_view constant);

/// True if a pickle of sample inputs may call the function with that name.
bool is_pickled_function(std::string_view name);

/// Returns the bytes of an element of the storage type with that name; nothing
/// for an unknown type.
std::optional<uint64_t> storage_item_bytes(std::string_view name);

} // namespace dtensor::detail
