// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/backend/packed_call_impl.h>

#include <ATen/ops/empty.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/observer.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

namespace dtensor::detail {
namespace {

/// Writes numbers, and sequences prefixed with their length.
class Packer {
 public:
  void put(int64_t value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <typename Number>
  requires std::is_enum_v<Number> || std::is_unsigned_v<Number>
  void put(Number value) {
    put(static_cast<int64_t>(value));
  }
  void put(std::string_view value) {
    put(value.size());
    text_.append(value);
  }
  void put(SizesRef values) {
    put(values.size());
    for (const int64_t value : values) {
      put(value);
    }
  }
  void put_common_fields(const Collective& collective) {
    std::apply(
        [&](const auto&... field) { (put(field), ...); },
        common_fields(collective));
  }
  /// Writes -1 as the dtype of an undefined tensor.
  void put(const at::Tensor& value) {
    put(value.defined() ? static_cast<int64_t>(value.scalar_type()) : -1);
    put(value.defined() ? SizesRef(value.sizes()) : SizesRef());
  }
  void put(const RankNotes& notes) {
    put(notes.hash());
    put(notes.count());
    put(notes.first().size());
    for (const AssumedShape& shape : notes.first()) {
      put(shape.sizes);
      put(shape.local_sizes);
      put(to_string(PlacementsRef(shape.placements)));
      put(shape.dtype);
      put(shape.module);
    }
    put(notes.errors());
    put(notes.last_error());
  }
  std::string done() {
    return std::move(text_);
  }

 private:
  std::string text_;
};

/// Reads what a Packer wrote, in the same order.
class Unpacker {
 public:
  Unpacker(const std::string& text, int64_t rank) : rest_(text), rank_(rank) {}

  void check(bool is_sound) const {
    DTENSOR_CHECK(
        is_sound,
        "[checks] cannot parse the call received from rank {}. Run the same "
        "program, with the same version of dtensor, on all ranks.",
        rank_);
  }
  int64_t number() {
    int64_t value = 0;
    check(rest_.size() >= sizeof(value));
    std::memcpy(&value, rest_.data(), sizeof(value));
    rest_.remove_prefix(sizeof(value));
    return value;
  }
  int64_t number_below(int64_t bound) {
    const int64_t value = number();
    check(value >= 0 && value < bound);
    return value;
  }
  /// Reads a count of items of at least `bytes` each.
  size_t count(size_t bytes) {
    const auto value = static_cast<size_t>(number());
    check(value <= rest_.size() / bytes);
    return value;
  }
  at::ScalarType dtype() {
    return static_cast<at::ScalarType>(
        number_below(static_cast<int64_t>(at::ScalarType::NumOptions)));
  }
  void read_field(CollectiveKind& kind) {
    kind = static_cast<CollectiveKind>(number_below(
        1 + static_cast<int64_t>(CollectiveKind::kAllGatherStrings)));
  }
  void read_field(ReduceOp& op) {
    op = static_cast<ReduceOp>(
        number_below(1 + static_cast<int64_t>(ReduceOp::kBxor)));
  }
  void read_field(int64_t& value) {
    value = number();
  }
  void read_field(Sizes& values) {
    values = sizes();
  }
  void read_common_fields(Collective& collective) {
    std::apply(
        [&](auto&... field) { (read_field(field), ...); },
        common_fields(collective));
  }
  /// Returns true if all input has been read.
  bool is_done() const {
    return rest_.empty();
  }
  std::string text() {
    const size_t length = count(1);
    std::string value(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return value;
  }
  Sizes sizes() {
    Sizes values(count(sizeof(int64_t)));
    for (int64_t& value : values) {
      value = number();
    }
    return values;
  }
  /// Reads the sizes of a valid tensor.
  Sizes shape() {
    Sizes values = sizes();
    check(is_valid_shape(values, int64_t{1} << 56));
    return values;
  }
  at::Tensor tensor() {
    const int64_t dtype = number();
    check(dtype < static_cast<int64_t>(at::ScalarType::NumOptions));
    const Sizes sizes = shape();
    return dtype < 0 ? at::Tensor()
                     : at::empty(
                           sizes,
                           at::TensorOptions(at::kMeta).dtype(
                               static_cast<at::ScalarType>(dtype)));
  }

 private:
  std::string_view rest_;
  int64_t rank_;
};

RankNotes unpack_notes(Unpacker& from) {
  const auto hash = static_cast<uint64_t>(from.number());
  const auto count = static_cast<uint64_t>(from.number());
  std::vector<AssumedShape> shapes(from.count(5 * sizeof(int64_t)));
  for (AssumedShape& shape : shapes) {
    shape.sizes = from.sizes();
    shape.local_sizes = from.sizes();
    shape.placements = parse_placements(from.text());
    shape.dtype = from.dtype();
    shape.module = keep_module_name(from.text());
  }
  const auto errors = static_cast<uint64_t>(from.number());
  return {hash, count, std::move(shapes), errors, from.text()};
}

// Returns the device type of the call's tensors; the CPU's without tensors.
int64_t device_of(const Call& call) {
  const at::Tensor& tensor = call.example();
  const auto its = tensor.defined() ? tensor.device().type() : c10::kCPU;
  return static_cast<int64_t>(call.device.value_or(its));
}

// Packs the properties that the members' tensors must have in common. A scatter
// has no such properties, because only its root has tensors.
void pack_common_properties(Packer& to, const Call& call) {
  if (call.kind == CollectiveKind::kScatter || call.inputs.empty()) {
    return;
  }
  const at::Tensor& input = call.input();
  to.put(input.scalar_type());
  const bool gathers = call.kind == CollectiveKind::kAllGather ||
      (call.kind == CollectiveKind::kAllToAll && call.shard_dim >= 0);
  if (gathers) {
    Sizes beside(input.sizes());
    beside[static_cast<size_t>(call.dim)] = 0;
    to.put(beside);
  } else if (
      call.kind == CollectiveKind::kAllReduce ||
      call.kind == CollectiveKind::kReduceScatter ||
      call.kind == CollectiveKind::kBroadcast) {
    to.put(input.sizes());
  }
}

// Returns true if the call has the tensors that its comparison reads.
bool has_what_it_needs(const Call& call, int64_t members) {
  const auto each = static_cast<size_t>(members);
  const auto is_defined = [](const at::Tensor& tensor) {
    return tensor.defined();
  };
  const bool gathers = call.kind == CollectiveKind::kAllGather;
  if (!std::ranges::all_of(call.inputs, is_defined) ||
      (call.gathered_size >= 0 && !gathers)) {
    return false;
  }
  const auto has_dim = [&] {
    return call.inputs.size() == 1 && call.dim >= 0 &&
        call.dim < call.input().dim();
  };
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kGather:
    case CollectiveKind::kBroadcast:
      return call.inputs.size() == 1;
    case CollectiveKind::kAllGather:
      return has_dim();
    case CollectiveKind::kAllToAll:
      if (call.shard_dim >= 0) {
        return has_dim();
      }
      return call.inputs.size() == each &&
          (call.shapes.empty() || call.shapes.size() == each);
    case CollectiveKind::kScatter:
      return call.like.defined() || call.inputs.size() == each;
    default:
      return true;
  }
}

} // namespace

std::string pack(const Call& call) {
  Packer to;
  to.put_common_fields(call);
  to.put(call.inputs.size());
  for (const at::Tensor& input : call.inputs) {
    to.put(input);
  }
  to.put(call.like);
  to.put(call.shapes.size());
  for (const Sizes& shape : call.shapes) {
    to.put(shape);
  }
  to.put(device_of(call));
  to.put(call.purpose);
  to.put(call.notes ? *call.notes : RankNotes());
  return to.done();
}

RemoteCall unpack(const std::string& packed, int64_t rank, int64_t members) {
  Unpacker from(packed, rank);
  RemoteCall remote;
  Call& call = remote.call;
  from.read_common_fields(call);
  from.check(call.root >= 0 && call.root < members);
  call.inputs.resize(from.count(2 * sizeof(int64_t)));
  for (at::Tensor& input : call.inputs) {
    input = from.tensor();
  }
  call.like = from.tensor();
  call.shapes.resize(from.count(sizeof(int64_t)));
  for (Sizes& shape : call.shapes) {
    shape = from.sizes();
  }
  call.device = static_cast<c10::DeviceType>(from.number_below(
      static_cast<int64_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES)));
  call.purpose = from.text();
  remote.notes = unpack_notes(from);
  from.check(from.is_done() && has_what_it_needs(call, members));
  return remote;
}

void check_packed_calls(
    const std::vector<std::string>& packed,
    const GroupMembers& members) {
  const auto size = static_cast<int64_t>(packed.size());
  std::vector<RemoteCall> remote_calls;
  for (size_t member = 0; member < packed.size(); ++member) {
    remote_calls.push_back(unpack(packed[member], members.ranks[member], size));
  }
  Calls calls;
  for (RemoteCall& theirs : remote_calls) {
    theirs.call.notes = &theirs.notes;
    calls.push_back(&theirs.call);
  }
  check_agreement(calls, members.ranks, members.label);
}

int64_t fingerprint(const Call& call) {
  Packer to;
  to.put_common_fields(call);
  to.put(device_of(call));
  to.put(int64_t{!call.shapes.empty()});
  to.put(call.purpose);
  pack_common_properties(to, call);
  to.put(call.notes ? call.notes->hash() : 0);
  to.put(call.notes ? call.notes->count() : 0);
  to.put(call.notes ? call.notes->errors() : 0);
  return static_cast<int64_t>(std::hash<std::string>()(to.done()));
}

bool has_more_to_compare(const Call& call) {
  return call.kind == CollectiveKind::kScatter || !call.shapes.empty();
}

} // namespace dtensor::detail
