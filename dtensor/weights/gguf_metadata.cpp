// SPDX-License-Identifier: BSD-3-Clause
// Reads the key-value pairs of GGUF. Arrays take about as much memory as in the
// file: arrays of one-byte numbers stay one byte per number.
#include <dtensor/weights/gguf_cursor_impl.h>

#include <dtensor/weights/json_document_impl.h>

#include <optional>
#include <utility>

namespace dtensor::detail {
namespace {

// Type of a value, with the numbers of the GGUF format.
enum class Type : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

std::optional<int64_t> read_whole_number(GgufCursor& cursor, Type type) {
  const auto read_integer = [&](auto kind) {
    return static_cast<int64_t>(cursor.number<decltype(kind)>());
  };
  switch (type) {
    case Type::kUint8:
      return read_integer(uint8_t{});
    case Type::kInt8:
      return read_integer(int8_t{});
    case Type::kUint16:
      return read_integer(uint16_t{});
    case Type::kInt16:
      return read_integer(int16_t{});
    case Type::kUint32:
      return read_integer(uint32_t{});
    case Type::kInt32:
      return read_integer(int32_t{});
    case Type::kUint64:
      return read_integer(uint64_t{});
    case Type::kInt64:
      return read_integer(int64_t{});
    default:
      return std::nullopt;
  }
}

WeightMetadata read_value(GgufCursor& cursor, Type type) {
  if (const auto number = read_whole_number(cursor, type)) {
    return *number;
  }
  switch (type) {
    case Type::kFloat32:
      return static_cast<double>(cursor.number<float>());
    case Type::kFloat64:
      return cursor.number<double>();
    case Type::kBool:
      return cursor.number<uint8_t>() != 0;
    case Type::kString:
      return cursor.text();
    default:
      cursor.refuse(
          c10::str("a value of unknown type ", static_cast<uint32_t>(type)));
  }
}

template <class Element>
std::vector<Element>
read_elements(GgufCursor& cursor, Type type, uint64_t count) {
  std::vector<Element> all;
  all.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    if constexpr (sizeof(Element) == 1) {
      all.push_back(cursor.number<Element>());
    } else {
      all.push_back(std::get<Element>(read_value(cursor, type)));
    }
  }
  return all;
}

std::vector<uint8_t> read_flags(GgufCursor& cursor, uint64_t count) {
  auto all = read_elements<uint8_t>(cursor, Type::kUint8, count);
  for (auto& flag : all) {
    flag = flag != 0 ? 1 : 0;
  }
  return all;
}

// Returns the minimum number of bytes of a value of that type in the file.
uint64_t least_bytes(Type type) {
  switch (type) {
    case Type::kUint16:
    case Type::kInt16:
      return 2;
    case Type::kUint32:
    case Type::kInt32:
    case Type::kFloat32:
      return 4;
    case Type::kString:
    case Type::kUint64:
    case Type::kInt64:
    case Type::kFloat64:
      return 8;
    default:
      return 1;
  }
}

WeightMetadata read_array(GgufCursor& cursor) {
  const auto type = static_cast<Type>(cursor.number<uint32_t>());
  const auto count = cursor.count(least_bytes(type));
  switch (type) {
    case Type::kString:
      return read_elements<std::string>(cursor, type, count);
    case Type::kFloat32:
    case Type::kFloat64:
      return read_elements<double>(cursor, type, count);
    case Type::kInt8:
      return read_elements<int8_t>(cursor, type, count);
    case Type::kUint8:
      return read_elements<uint8_t>(cursor, type, count);
    case Type::kBool:
      return read_flags(cursor, count);
    case Type::kUint16:
    case Type::kInt16:
    case Type::kUint32:
    case Type::kInt32:
    case Type::kUint64:
    case Type::kInt64:
      return read_elements<int64_t>(cursor, type, count);
    default:
      cursor.refuse(
          c10::str("an array of unknown type ", static_cast<uint32_t>(type)));
  }
}

} // namespace

void read_gguf_pairs(
    std::map<std::string, WeightMetadata>& metadata,
    GgufCursor& cursor,
    uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    auto key = cursor.text();
    if (metadata.count(key) > 0) {
      cursor.refuse(quoted_json(key) + " appears twice");
    }
    const auto type = static_cast<Type>(cursor.number<uint32_t>());
    if (key == kGgufAlignment && type != Type::kUint32) {
      cursor.refuse(c10::str(kGgufAlignment, " is not a uint32"));
    }
    auto value =
        type == Type::kArray ? read_array(cursor) : read_value(cursor, type);
    metadata.emplace(std::move(key), std::move(value));
  }
}

} // namespace dtensor::detail
