// SPDX-License-Identifier: BSD-3-Clause
// Reader of GGUF: counts, key-value pairs, a description and place of each
// tensor, and the bytes of all tensors. Numbers are little-endian; sizes begin
// with the innermost.
//
// Accepts the files that llama.cpp accepts. Tensors lie one after the other,
// each at a multiple of the alignment, which is a power of two. No key or name
// occurs twice. A model that is split into several files is refused.
#include <dtensor/weights/weight_contents_impl.h>

#include <dtensor/format_text.h>
#include <dtensor/weights/gguf_cursor_impl.h>
#include <dtensor/weights/json_document_impl.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <tuple>
#include <utility>

namespace dtensor::detail {
namespace {

struct Entry {
  WeightInfo info;
  const GgufFormat* stored_as = nullptr;
  uint64_t bytes = 0;
  uint64_t offset = 0; // from the start of the tensors' bytes
};

// Sets the format of a tensor and its number of bytes. Rows consist of full
// blocks.
void set_format(Entry& entry, uint32_t number, const GgufCursor& cursor) {
  const auto name = shown_name(entry.info.name);
  entry.stored_as = gguf_format(number);
  if (entry.stored_as == nullptr) {
    cursor.refuse(
        detail::format_text("{} has the unknown type {}", name, number));
  }
  const auto& format = entry.stored_as->format;
  const auto& sizes = entry.info.sizes;
  const auto row = sizes.empty() ? 1 : sizes.back();
  if (row % format.block != 0) {
    cursor.refuse(detail::format_text(
        "{} has rows of {} elements, not a multiple of the block size {}",
        name,
        row,
        format.block));
  }
  entry.info.format = format.name;
  entry.info.dtype = format.dtype;
  entry.bytes = static_cast<uint64_t>(numel(sizes) / format.block) *
      static_cast<uint64_t>(format.bytes);
}

Entry read_entry(GgufCursor& cursor) {
  Entry entry;
  entry.info.name = cursor.text();
  const auto ndim = cursor.number<uint32_t>();
  if (ndim > 8) {
    cursor.refuse(detail::format_text(
        "{} has {} dimensions", shown_name(entry.info.name), ndim));
  }
  for (uint32_t d = 0; d < ndim; ++d) {
    const auto size = cursor.number<uint64_t>();
    if (!add_size(entry.info.sizes, size)) {
      cursor.refuse(detail::format_text(
          "{} has the invalid size {}", shown_name(entry.info.name), size));
    }
  }
  std::ranges::reverse(entry.info.sizes);
  set_format(entry, cursor.number<uint32_t>(), cursor);
  entry.offset = cursor.number<uint64_t>();
  return entry;
}

uint64_t alignment_of(
    const WeightFile::Contents& contents,
    const GgufCursor& at) {
  const auto found = contents.metadata.find(kGgufAlignment);
  if (found == contents.metadata.end()) {
    return 32;
  }
  const auto value = static_cast<uint64_t>(std::get<int64_t>(found->second));
  if (!std::has_single_bit(value)) {
    at.refuse(detail::format_text(
        "{} is {}, not a power of two", kGgufAlignment, value));
  }
  return value;
}

// Refuses a model that is split into several files, because the first file
// lacks most layers.
void check_is_single_file(
    const WeightFile::Contents& contents,
    const MappedFile& file) {
  const auto found = contents.metadata.find("split.count");
  if (found == contents.metadata.end()) {
    return;
  }
  const auto* count = std::get_if<int64_t>(&found->second);
  if (count == nullptr || *count > 1) {
    refuse_file(
        file.path(),
        detail::format_text(
            "split.count is {}: it is one of several files of a model",
            count == nullptr ? "not a number" : std::to_string(*count)),
        "Merge them with llama-gguf-split --merge");
  }
}

// Returns the tensors sorted by their place in the file.
std::vector<const Entry*> sorted_by_place(const std::vector<Entry>& entries) {
  std::vector<const Entry*> sorted;
  sorted.reserve(entries.size());
  for (const auto& entry : entries) {
    sorted.push_back(&entry);
  }
  std::ranges::sort(sorted, [](const auto* a, const auto* b) {
    return std::tie(a->offset, a->bytes) < std::tie(b->offset, b->bytes);
  });
  return sorted;
}

// Throws unless the tensors fill the file from `data` on, one after the other,
// each padded to the alignment.
void check_places(
    const MappedFile& file,
    const std::vector<Entry>& entries,
    uint64_t data,
    uint64_t alignment) {
  const auto data_bytes = data > file.size() ? 0 : file.size() - data;
  uint64_t at = 0;
  for (const auto* entry : sorted_by_place(entries)) {
    const auto refuse = [&](const std::string& why) {
      const auto& name = shown_name(entry->info.name);
      refuse_file(
          file.path(),
          detail::format_text(
              "the weight {} is at offset {}{}", name, entry->offset, why));
    };
    if (entry->offset % alignment != 0) {
      refuse(format_text(", not a multiple of the alignment {}", alignment));
    }
    if (entry->offset < at) {
      refuse(format_text(", inside the previous weight, which ends at {}", at));
    }
    if (entry->offset > at) {
      refuse(format_text(", but the previous weight ends at {}", at));
    }
    if (at > data_bytes || entry->bytes > data_bytes - at) {
      refuse(format_text(
          " and ends at {}, beyond the {} bytes of data",
          at + entry->bytes,
          data_bytes));
    }
    at += (entry->bytes + alignment - 1) / alignment * alignment;
  }
  if (data_bytes > at) {
    refuse_file(
        file.path(),
        detail::format_text(
            "its weights have {} bytes, but its data has {}", at, data_bytes));
  }
}

} // namespace

void read_gguf(WeightFile::Contents& contents, MappedFilePtr mapped) {
  const auto& file = *contents.files.emplace_back(std::move(mapped));
  GgufCursor cursor(file);
  cursor.number<uint32_t>(); // "GGUF"
  const auto version = cursor.number<uint32_t>();
  if (version != 2 && version != 3) {
    cursor.refuse(
        detail::format_text("its GGUF version is {}, not 2 or 3", version));
  }
  const auto tensors = cursor.count(24);
  const auto pairs = cursor.count(13);
  read_gguf_pairs(contents.metadata, cursor, pairs);
  check_is_single_file(contents, file);
  std::vector<Entry> entries;
  for (uint64_t i = 0; i < tensors; ++i) {
    entries.push_back(read_entry(cursor));
  }
  const auto alignment = alignment_of(contents, cursor);
  const auto data = (cursor.position() + alignment - 1) / alignment * alignment;
  check_places(file, entries, data, alignment);
  for (auto& entry : entries) {
    contents.add(
        std::move(entry.info),
        entry.stored_as->can_be_read ? &entry.stored_as->format : nullptr,
        file,
        data + entry.offset);
  }
}

// Reads the key-value pairs of GGUF. Arrays take about as much memory as in the
// file: one byte per number for arrays of one-byte numbers.

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
