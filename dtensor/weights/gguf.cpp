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
#include <dtensor/weights/json_document_impl.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr const char* kGgufAlignment = "general.alignment";

// A position in the file. All reads end within the file.
class GgufCursor {
 public:
  explicit GgufCursor(const MappedFile& file) : file_(file) {}

  uint64_t position() const {
    return position_;
  }

  // Reads a number. Like all functions below, throws ValueError at the end of
  // the file.
  template <class Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take_bytes(sizeof(Number)), sizeof(Number));
    return value;
  }

  std::string text() {
    const auto length = number<uint64_t>();
    return {reinterpret_cast<const char*>(take_bytes(length)), length};
  }

  // Reads a number of items that have at least `bytes_each` bytes each.
  uint64_t count(uint64_t bytes_each) {
    const auto value = number<uint64_t>();
    if (value > left() / bytes_each) {
      refuse(
          "a count of {}, but only {} left", value, pluralize(left(), "byte"));
    }
    return value;
  }

  // Throws ValueError with the position and the problem.
  template <class... Values>
  [[noreturn]] void refuse(
      TextFormat<sizeof...(Values)> why,
      const Values&... values) const {
    refuse_file(
        file_.path(), "at byte {}: {}", position_, format_text(why, values...));
  }

 private:
  uint64_t left() const {
    return file_.size() - position_;
  }

  const std::byte* take_bytes(uint64_t bytes) {
    if (bytes > left()) {
      refuse("end of file, but {} needed", pluralize(bytes, "more byte"));
    }
    const auto* here = file_.data() + position_;
    position_ += bytes;
    return here;
  }

  const MappedFile& file_;
  uint64_t position_ = 0;
};

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

// Integers and numbers with a fraction are read as these types.
template <class Number>
using Wide = std::conditional_t<std::is_integral_v<Number>, int64_t, double>;

// Calls `use` with a value of the number's type. Returns nothing for a type
// that is not a number.
template <class Use>
std::optional<WeightMetadata> with_number(Type type, const Use& use) {
  switch (type) {
    case Type::kUint8:
      return use(uint8_t{});
    case Type::kInt8:
      return use(int8_t{});
    case Type::kUint16:
      return use(uint16_t{});
    case Type::kInt16:
      return use(int16_t{});
    case Type::kUint32:
      return use(uint32_t{});
    case Type::kInt32:
      return use(int32_t{});
    case Type::kFloat32:
      return use(float{});
    case Type::kUint64:
      return use(uint64_t{});
    case Type::kInt64:
      return use(int64_t{});
    case Type::kFloat64:
      return use(double{});
    default:
      return std::nullopt;
  }
}

WeightMetadata read_value(GgufCursor& cursor, Type type) {
  if (type == Type::kBool) {
    return cursor.number<uint8_t>() != 0;
  }
  if (type == Type::kString) {
    return cursor.text();
  }
  auto value = with_number(type, [&](auto kind) -> WeightMetadata {
    using Number = decltype(kind);
    return static_cast<Wide<Number>>(cursor.number<Number>());
  });
  if (!value) {
    cursor.refuse("a value of unknown type {}", static_cast<uint32_t>(type));
  }
  return *std::move(value);
}

// Reads a count and that many elements, with at least `bytes_each` bytes each.
template <class Element, class Read>
std::vector<Element>
read_elements(GgufCursor& cursor, uint64_t bytes_each, const Read& read) {
  const auto count = cursor.count(bytes_each);
  std::vector<Element> all;
  all.reserve(count); // and write only elements that are in the file
  std::generate_n(std::back_inserter(all), count, read);
  return all;
}

WeightMetadata read_array(GgufCursor& cursor) {
  const auto type = static_cast<Type>(cursor.number<uint32_t>());
  if (type == Type::kBool) {
    return read_elements<uint8_t>(cursor, 1, [&] {
      return static_cast<uint8_t>(cursor.number<uint8_t>() != 0);
    });
  }
  if (type == Type::kString) {
    return read_elements<std::string>(
        cursor, sizeof(uint64_t), [&] { return cursor.text(); });
  }
  auto array = with_number(type, [&](auto kind) -> WeightMetadata {
    using Number = decltype(kind);
    using Element =
        std::conditional_t<sizeof(Number) == 1, Number, Wide<Number>>;
    return read_elements<Element>(cursor, sizeof(Number), [&] {
      return static_cast<Element>(cursor.number<Number>());
    });
  });
  if (!array) {
    cursor.count(1);
    cursor.refuse("an array of unknown type {}", static_cast<uint32_t>(type));
  }
  return *std::move(array);
}

// Reads `count` key-value pairs. Arrays take about as much memory as in the
// file: one byte per number for arrays of one-byte numbers.
void read_pairs(
    std::map<std::string, WeightMetadata>& metadata,
    GgufCursor& cursor,
    uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    auto key = cursor.text();
    if (metadata.count(key) > 0) {
      cursor.refuse("{} appears twice", quoted_json(key));
    }
    const auto type = static_cast<Type>(cursor.number<uint32_t>());
    if (key == kGgufAlignment && type != Type::kUint32) {
      cursor.refuse("{} is not a uint32", kGgufAlignment);
    }
    auto value =
        type == Type::kArray ? read_array(cursor) : read_value(cursor, type);
    metadata.emplace(std::move(key), std::move(value));
  }
}

struct Entry {
  WeightInfo info;
  const WeightFormat* stored_as = nullptr;
  uint64_t bytes = 0;
  uint64_t offset = 0; // from the start of the tensors' bytes
};

// Sets the format of a tensor and its number of bytes. Rows consist of full
// blocks.
void set_format(Entry& entry, uint32_t number, const GgufCursor& cursor) {
  const auto name = shown_name(entry.info.name);
  entry.stored_as = gguf_format(number);
  if (entry.stored_as == nullptr) {
    cursor.refuse("{} has the unknown type {}", name, number);
  }
  const auto& format = *entry.stored_as;
  const auto& sizes = entry.info.sizes;
  const auto row = sizes.empty() ? 1 : sizes.back();
  if (row % format.block != 0) {
    cursor.refuse(
        "{} has rows of {} elements, not a multiple of the block size {}",
        name,
        row,
        format.block);
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
    cursor.refuse("{} has {} dimensions", shown_name(entry.info.name), ndim);
  }
  for (uint32_t d = 0; d < ndim; ++d) {
    const auto size = cursor.number<uint64_t>();
    if (!add_size(entry.info.sizes, size)) {
      cursor.refuse(
          "{} has the invalid size {}", shown_name(entry.info.name), size);
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
    at.refuse("{} is {}, not a power of two", kGgufAlignment, value);
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
    refuse_file_with(
        "Merge them with llama-gguf-split --merge",
        file.path(),
        format_text(
            "split.count is {}: it is one of several files of a model",
            count == nullptr ? "not a number" : std::to_string(*count)));
  }
}

std::string place_text(const Entry& entry) {
  return format_text(
      "the weight {} is at offset {}",
      shown_name(entry.info.name),
      entry.offset);
}

// Throws unless the tensors fill the file from `data` on, one after the other,
// each padded to the alignment.
void check_places(
    const MappedFile& file,
    std::vector<Entry> entries,
    uint64_t data,
    uint64_t alignment) {
  std::ranges::sort(entries, [](const auto& a, const auto& b) {
    return std::tie(a.offset, a.bytes) < std::tie(b.offset, b.bytes);
  });
  const auto data_bytes = data > file.size() ? 0 : file.size() - data;
  uint64_t at = 0;
  for (const auto& entry : entries) {
    const auto refuse = [&](const std::string& why) {
      refuse_file(file.path(), place_text(entry) + why);
    };
    if (entry.offset % alignment != 0) {
      refuse(format_text(", not a multiple of the alignment {}", alignment));
    }
    if (entry.offset < at) {
      refuse(format_text(", inside the previous weight, which ends at {}", at));
    }
    if (entry.offset > at) {
      refuse(format_text(", but the previous weight ends at {}", at));
    }
    if (at > data_bytes || entry.bytes > data_bytes - at) {
      refuse(format_text(
          " and ends at {}, beyond the {} bytes of data",
          at + entry.bytes,
          data_bytes));
    }
    at += (entry.bytes + alignment - 1) / alignment * alignment;
  }
  if (data_bytes > at) {
    refuse_file(
        file.path(),
        "its weights have {} bytes, but its data has {}",
        at,
        data_bytes);
  }
}

} // namespace

void read_gguf(WeightFile::Contents& contents, MappedFilePtr mapped) {
  const auto& file = *contents.files.emplace_back(std::move(mapped));
  GgufCursor cursor(file);
  cursor.number<uint32_t>(); // "GGUF"
  const auto version = cursor.number<uint32_t>();
  if (version != 2 && version != 3) {
    cursor.refuse("its GGUF version is {}, not 2 or 3", version);
  }
  const auto tensors = cursor.count(24);
  const auto pairs = cursor.count(13);
  read_pairs(contents.metadata, cursor, pairs);
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
        entry.stored_as->can_be_read ? entry.stored_as : nullptr,
        file,
        data + entry.offset);
  }
}

} // namespace dtensor::detail
