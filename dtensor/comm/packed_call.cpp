// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/packed_call_impl.h>

#include <ATen/ops/empty.h>
#include <dtensor/layout/text.h>

#include <cstring>
#include <functional>

namespace dtensor::detail {
namespace {

/// Writes numbers, and what begins with how many of them there are.
class Packer {
 public:
  void number(int64_t value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void text(std::string_view value) {
    number(static_cast<int64_t>(value.size()));
    text_.append(value);
  }
  void sizes(SizesRef values) {
    number(static_cast<int64_t>(values.size()));
    for (const int64_t value : values) {
      number(value);
    }
  }
  /// Undefined tensors have no dtype.
  void tensor(const at::Tensor& value) {
    number(value.defined() ? static_cast<int64_t>(value.scalar_type()) : -1);
    sizes(value.defined() ? SizesRef(value.sizes()) : SizesRef());
  }
  std::string done() {
    return std::move(text_);
  }

 private:
  std::string text_;
};

/// Reads them in the same order.
class Unpacker {
 public:
  explicit Unpacker(const std::string& text) : rest_(text) {}

  int64_t number() {
    int64_t value = 0;
    std::memcpy(&value, rest_.data(), sizeof(value));
    rest_.remove_prefix(sizeof(value));
    return value;
  }
  std::string text() {
    const auto length = static_cast<size_t>(number());
    std::string value(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return value;
  }
  Sizes sizes() {
    Sizes values(static_cast<size_t>(number()));
    for (int64_t& value : values) {
      value = number();
    }
    return values;
  }
  at::Tensor tensor() {
    const int64_t dtype = number();
    const Sizes shape = sizes();
    return dtype < 0 ? at::Tensor()
                     : at::empty(
                           shape,
                           at::TensorOptions(at::kMeta).dtype(
                               static_cast<at::ScalarType>(dtype)));
  }

 private:
  std::string_view rest_;
};

void pack_assumed(Packer& to, const AssumedShapes& assumed) {
  to.number(static_cast<int64_t>(assumed.hash()));
  to.number(static_cast<int64_t>(assumed.count()));
  to.number(static_cast<int64_t>(assumed.first().size()));
  for (const AssumedShape& shape : assumed.first()) {
    to.sizes(shape.sizes);
    to.sizes(shape.local_sizes);
    to.text(to_string(PlacementsRef(shape.placements)));
    to.number(static_cast<int64_t>(shape.dtype));
    to.text(shape.module);
  }
}

AssumedShapes unpack_assumed(Unpacker& from) {
  const auto hash = static_cast<uint64_t>(from.number());
  const auto count = static_cast<uint64_t>(from.number());
  std::vector<AssumedShape> shapes(static_cast<size_t>(from.number()));
  for (AssumedShape& shape : shapes) {
    shape.sizes = from.sizes();
    shape.local_sizes = from.sizes();
    shape.placements = parse_placements(from.text());
    shape.dtype = static_cast<at::ScalarType>(from.number());
    shape.module = keep_module_name(from.text());
  }
  return {hash, count, std::move(shapes)};
}

// Of texts, the CPU's.
int64_t device_of(const Call& call) {
  const bool gives = !call.inputs.empty() && call.input().defined();
  const at::Tensor& tensor = gives ? call.input() : call.like;
  const auto its = tensor.defined() ? tensor.device().type() : c10::kCPU;
  return static_cast<int64_t>(call.device.value_or(its));
}

// What members' tensors have in common: the root of a scatter alone has some.
void pack_what_is_alike(Packer& to, const Call& call) {
  if (call.kind == CollectiveKind::kScatter || call.inputs.empty()) {
    return;
  }
  const at::Tensor& input = call.input();
  to.number(static_cast<int64_t>(input.scalar_type()));
  const bool gathers = call.kind == CollectiveKind::kAllGather ||
      (call.kind == CollectiveKind::kAllToAll && call.shard_dim >= 0);
  if (gathers) {
    Sizes beside(input.sizes());
    beside[static_cast<size_t>(call.dim)] = 0;
    to.sizes(beside);
  } else if (
      call.kind == CollectiveKind::kAllReduce ||
      call.kind == CollectiveKind::kReduceScatter ||
      call.kind == CollectiveKind::kBroadcast) {
    to.sizes(input.sizes());
  }
}

} // namespace

std::string pack(const Call& call) {
  Packer to;
  to.number(call.kind ? static_cast<int64_t>(*call.kind) : -1);
  to.number(static_cast<int64_t>(call.inputs.size()));
  for (const at::Tensor& input : call.inputs) {
    to.tensor(input);
  }
  to.tensor(call.like);
  to.number(static_cast<int64_t>(call.op));
  to.number(call.dim);
  to.number(call.shard_dim);
  to.sizes(call.sizes);
  to.number(static_cast<int64_t>(call.shapes.size()));
  for (const Sizes& shape : call.shapes) {
    to.sizes(shape);
  }
  to.number(call.gathered_size);
  to.number(call.root);
  to.number(device_of(call));
  to.text(call.purpose);
  pack_assumed(to, call.assumed ? *call.assumed : AssumedShapes());
  return to.done();
}

ToldCall unpack(const std::string& packed) {
  Unpacker from(packed);
  ToldCall told;
  Call& call = told.call;
  if (const int64_t kind = from.number(); kind >= 0) {
    call.kind = static_cast<CollectiveKind>(kind);
  }
  call.inputs.resize(static_cast<size_t>(from.number()));
  for (at::Tensor& input : call.inputs) {
    input = from.tensor();
  }
  call.like = from.tensor();
  call.op = static_cast<ReduceOp>(from.number());
  call.dim = from.number();
  call.shard_dim = from.number();
  call.sizes = from.sizes();
  call.shapes.resize(static_cast<size_t>(from.number()));
  for (Sizes& shape : call.shapes) {
    shape = from.sizes();
  }
  call.gathered_size = from.number();
  call.root = from.number();
  call.device = static_cast<c10::DeviceType>(from.number());
  call.purpose = from.text();
  told.assumed = unpack_assumed(from);
  return told;
}

int64_t fingerprint(const Call& call) {
  Packer to;
  to.number(call.kind ? static_cast<int64_t>(*call.kind) : -1);
  to.number(static_cast<int64_t>(call.op));
  to.number(call.dim);
  to.number(call.shard_dim);
  to.sizes(call.sizes);
  to.number(call.gathered_size);
  to.number(call.root);
  to.number(device_of(call));
  to.number(call.shapes.empty() ? 0 : 1);
  to.text(call.purpose);
  pack_what_is_alike(to, call);
  to.number(call.assumed ? static_cast<int64_t>(call.assumed->hash()) : 0);
  to.number(call.assumed ? static_cast<int64_t>(call.assumed->count()) : 0);
  return static_cast<int64_t>(std::hash<std::string>()(to.done()));
}

bool has_more_to_compare(const Call& call) {
  return call.kind == CollectiveKind::kScatter || !call.shapes.empty();
}

} // namespace dtensor::detail
