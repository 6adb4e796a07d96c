// SPDX-License-Identifier: BSD-3-Clause
// GGUF: counts, key-value pairs, what each tensor is and where, and the bytes
// of all tensors. Numbers are little-endian; sizes begin with the innermost.
#include <dtensor/weights/weight_contents_impl.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

namespace dtensor::detail {
namespace {

// A position in the file; what is read ends within it.
class Cursor {
 public:
  explicit Cursor(const MappedFile& file) : file_(file) {}

  uint64_t position() const {
    return position_;
  }

  template <class Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take(sizeof(Number)), sizeof(Number));
    return value;
  }

  std::string text() {
    const auto length = number<uint64_t>();
    return {reinterpret_cast<const char*>(take(length)), length};
  }

  /// Of things of at least so many bytes each.
  uint64_t count(uint64_t bytes_each) {
    const auto value = number<uint64_t>();
    if (value > left() / bytes_each) {
      refuse(
          c10::str("it counts ", value, " where ", left(), " bytes are left"));
    }
    return value;
  }

  [[noreturn]] void refuse(const std::string& why) const {
    refuse_file(file_.path(), c10::str("at byte ", position_, " ", why));
  }

 private:
  uint64_t left() const {
    return file_.size() - position_;
  }

  const std::byte* take(uint64_t bytes) {
    if (bytes > left()) {
      refuse(c10::str("it ends: ", bytes, " more bytes are needed"));
    }
    const auto* here = file_.data() + position_;
    position_ += bytes;
    return here;
  }

  const MappedFile& file_;
  uint64_t position_ = 0;
};

// Of a value; the numbers are the format's.
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

std::optional<int64_t> read_whole_number(Cursor& cursor, Type type) {
  const auto whole = [&](auto kind) {
    return static_cast<int64_t>(cursor.number<decltype(kind)>());
  };
  switch (type) {
    case Type::kUint8:
      return whole(uint8_t{});
    case Type::kInt8:
      return whole(int8_t{});
    case Type::kUint16:
      return whole(uint16_t{});
    case Type::kInt16:
      return whole(int16_t{});
    case Type::kUint32:
      return whole(uint32_t{});
    case Type::kInt32:
      return whole(int32_t{});
    case Type::kUint64:
      return whole(uint64_t{});
    case Type::kInt64:
      return whole(int64_t{});
    default:
      return std::nullopt;
  }
}

WeightMetadata read_value(Cursor& cursor, Type type) {
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
          c10::str("there is a value of type ", static_cast<uint32_t>(type)));
  }
}

template <class Element>
std::vector<Element> read_elements(Cursor& cursor, Type type, uint64_t count) {
  std::vector<Element> all;
  all.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    auto value = read_value(cursor, type);
    if constexpr (std::is_same_v<Element, int64_t>) {
      if (const auto* flag = std::get_if<bool>(&value)) {
        all.push_back(*flag ? 1 : 0);
        continue;
      }
    }
    all.push_back(std::get<Element>(std::move(value)));
  }
  return all;
}

// What a value of that type takes in the file.
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

WeightMetadata read_array(Cursor& cursor) {
  const auto type = static_cast<Type>(cursor.number<uint32_t>());
  const auto count = cursor.count(least_bytes(type));
  switch (type) {
    case Type::kString:
      return read_elements<std::string>(cursor, type, count);
    case Type::kFloat32:
    case Type::kFloat64:
      return read_elements<double>(cursor, type, count);
    default:
      return read_elements<int64_t>(cursor, type, count);
  }
}

struct Entry {
  WeightInfo info;
  const WeightFormat* format = nullptr;
  uint64_t offset = 0; // in the part with the bytes
};

Entry read_entry(Cursor& cursor) {
  Entry entry;
  entry.info.name = cursor.text();
  const auto ndim = cursor.number<uint32_t>();
  if (ndim > 8) {
    cursor.refuse(c10::str(entry.info.name, " has ", ndim, " dimensions"));
  }
  for (uint32_t d = 0; d < ndim; ++d) {
    const auto size = cursor.number<uint64_t>();
    if (!add_size(entry.info.sizes, size)) {
      cursor.refuse(c10::str(entry.info.name, " has a size of ", size));
    }
  }
  std::reverse(entry.info.sizes.begin(), entry.info.sizes.end());
  const auto type = cursor.number<uint32_t>();
  entry.format = gguf_format(type);
  entry.info.format = gguf_format_name(type);
  if (entry.format != nullptr) {
    entry.info.dtype = entry.format->dtype;
  }
  entry.offset = cursor.number<uint64_t>();
  return entry;
}

uint64_t alignment_of(const WeightFile::Contents& contents, const Cursor& at) {
  const auto found = contents.metadata.find("general.alignment");
  if (found == contents.metadata.end()) {
    return 32;
  }
  const auto* value = std::get_if<int64_t>(&found->second);
  if (value == nullptr || *value < 1 || *value > (1 << 20)) {
    at.refuse("general.alignment is no alignment");
  }
  return static_cast<uint64_t>(*value);
}

} // namespace

void read_gguf(WeightFile::Contents& contents, MappedFilePtr mapped) {
  const auto& file = *contents.files.emplace_back(std::move(mapped));
  Cursor cursor(file);
  cursor.number<uint32_t>(); // "GGUF"
  const auto version = cursor.number<uint32_t>();
  if (version != 2 && version != 3) {
    cursor.refuse(c10::str("it is GGUF version ", version, ", not 2 or 3"));
  }
  const auto tensors = cursor.count(24);
  const auto pairs = cursor.count(13);
  for (uint64_t i = 0; i < pairs; ++i) {
    auto key = cursor.text();
    const auto type = static_cast<Type>(cursor.number<uint32_t>());
    contents.metadata.insert_or_assign(
        std::move(key),
        type == Type::kArray ? read_array(cursor) : read_value(cursor, type));
  }
  std::vector<Entry> entries;
  for (uint64_t i = 0; i < tensors; ++i) {
    entries.push_back(read_entry(cursor));
  }
  const auto alignment = alignment_of(contents, cursor);
  const auto data = (cursor.position() + alignment - 1) / alignment * alignment;
  for (auto& entry : entries) {
    if (entry.offset > file.size()) {
      refuse_file(file.path(), entry.info.name + " lies outside of it");
    }
    contents.add(
        std::move(entry.info), entry.format, file, data + entry.offset);
  }
}

} // namespace dtensor::detail
