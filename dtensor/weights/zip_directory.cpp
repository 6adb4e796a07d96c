// SPDX-License-Identifier: BSD-3-Clause
// Reads the directory at the end of a zip file. An end record behind the
// directory holds its position. Larger files have a wider end record before the
// usual one.
#include <dtensor/weights/pt2_archive_impl.h>

#include <dtensor/weights/json_document_impl.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

// Sizes of the records' fixed parts, and offsets of fields in them.
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kWideLocatorBytes = 20;
constexpr uint64_t kEntryBytes = 46;
constexpr uint64_t kHeaderBytes = 30;
constexpr uint64_t kLongestComment = 65535;

constexpr std::string_view kHeader("PK\x03\x04", 4);
constexpr std::string_view kEntry("PK\x01\x02", 4);
constexpr std::string_view kEnd("PK\x05\x06", 4);
constexpr std::string_view kWideEnd("PK\x06\x06", 4);
constexpr std::string_view kWideLocator("PK\x06\x07", 4);

class Bytes {
 public:
  explicit Bytes(const MappedFile& file) : file_(file) {}

  bool has(uint64_t offset, uint64_t count) const {
    return count <= file_.size() && offset <= file_.size() - count;
  }

  bool begins(uint64_t offset, std::string_view with) const {
    return has(offset, with.size()) && text(offset, with.size()) == with;
  }

  std::string_view text(uint64_t offset, uint64_t count) const {
    check(offset, count);
    return {reinterpret_cast<const char*>(file_.data()) + offset, count};
  }

  // Numbers are little-endian, as on the supported machines.
  template <class Number>
  Number number(uint64_t offset) const {
    check(offset, sizeof(Number));
    Number value = 0;
    std::memcpy(&value, file_.data() + offset, sizeof(Number));
    return value;
  }

  [[noreturn]] void refuse(uint64_t offset) const {
    refuse_file(
        file_.path(),
        c10::str(
            "truncated or damaged archive: invalid directory at byte ",
            offset));
  }

 private:
  void check(uint64_t offset, uint64_t count) const {
    if (!has(offset, count)) {
      refuse(offset);
    }
  }

  const MappedFile& file_;
};

// Returns the offset of the end record. A comment may follow it.
uint64_t end_of_directory(const Bytes& bytes, uint64_t size) {
  for (uint64_t back = kEndBytes;
       back <= std::min(size, kEndBytes + kLongestComment);
       ++back) {
    if (bytes.begins(size - back, kEnd)) {
      return size - back;
    }
  }
  bytes.refuse(size);
}

struct Directory {
  uint64_t begin = 0;
  uint64_t count = 0;
};

Directory find_directory(const Bytes& bytes, uint64_t size) {
  const auto end = end_of_directory(bytes, size);
  const bool is_wide = end >= kWideLocatorBytes &&
      bytes.begins(end - kWideLocatorBytes, kWideLocator);
  if (!is_wide) {
    return {bytes.number<uint32_t>(end + 16), bytes.number<uint16_t>(end + 10)};
  }
  const auto wide = bytes.number<uint64_t>(end - kWideLocatorBytes + 8);
  if (!bytes.begins(wide, kWideEnd)) {
    bytes.refuse(wide);
  }
  return {bytes.number<uint64_t>(wide + 48), bytes.number<uint64_t>(wide + 32)};
}

// Number of bytes processed at once. The first of these bytes uses the last
// table.
constexpr size_t kAtOnce = 16;
using CrcTables = std::array<std::array<uint32_t, 256>, kAtOnce>;

constexpr CrcTables make_tables() {
  constexpr uint32_t kPolynomial = 0xedb88320;
  CrcTables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    }
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < kAtOnce; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

// Reads sizes that do not fit in 32 bits from the extra field, in the order of
// the arguments.
void read_wide_sizes(
    const Bytes& bytes,
    uint64_t extra,
    uint64_t end,
    ZipRecord& record) {
  constexpr uint64_t kNarrow = 0xffffffff;
  constexpr uint64_t kFieldHeader = 4;
  constexpr uint16_t kWideSizes = 1;
  while (extra + kFieldHeader <= end) {
    const auto id = bytes.number<uint16_t>(extra);
    auto at = extra + kFieldHeader;
    extra = at + bytes.number<uint16_t>(extra + 2);
    if (id != kWideSizes || extra > end) {
      continue;
    }
    for (auto* size : {&record.bytes, &record.stored_bytes}) {
      if (*size == kNarrow && at + sizeof(uint64_t) <= extra) {
        *size = bytes.number<uint64_t>(at);
        at += sizeof(uint64_t);
      }
    }
  }
}

// Returns false for a stored and true for a deflated record.
bool is_compressed(
    const MappedFile& file,
    const ZipRecord& record,
    uint16_t method) {
  constexpr uint16_t kStored = 0;
  constexpr uint16_t kDeflated = 8;
  if (method != kStored && method != kDeflated) {
    refuse_file(
        file.path(),
        "{} is compressed by method {}, but only deflated and stored "
        "records are supported",
        shown_name(record.name),
        method);
  }
  return method == kDeflated;
}

// Throws for a record that would take more memory than allowed.
void check_sizes(const MappedFile& file, const ZipRecord& record) {
  const auto most = record.is_compressed
      ? max_unpacked_bytes(record.stored_bytes)
      : record.stored_bytes;
  if (record.stored_bytes > file.size() || record.bytes > most) {
    refuse_file(
        file.path(),
        "{} has {} bytes in the file, but claims {} uncompressed bytes",
        shown_name(record.name),
        record.stored_bytes,
        record.bytes);
  }
}

} // namespace

uint64_t max_unpacked_bytes(uint64_t stored_bytes) {
  constexpr uint64_t kRatio = 64;
  constexpr uint64_t kSmall = uint64_t{1} << 20;
  constexpr uint64_t kMost = uint64_t{1} << 28;
  return std::min(kMost, kSmall + kRatio * std::min(kMost, stored_bytes));
}

std::vector<ZipRecord> read_zip_directory(const MappedFile& file) {
  const Bytes bytes(file);
  const auto directory = find_directory(bytes, file.size());
  std::vector<ZipRecord> records;
  auto at = directory.begin;
  for (uint64_t i = 0; i < directory.count; ++i) {
    if (!bytes.begins(at, kEntry)) {
      bytes.refuse(at);
    }
    const auto length = bytes.number<uint16_t>(at + 28);
    const auto extra = bytes.number<uint16_t>(at + 30);
    const auto comment = bytes.number<uint16_t>(at + 32);
    ZipRecord record;
    record.name = bytes.text(at + kEntryBytes, length);
    record.crc32 = bytes.number<uint32_t>(at + 16);
    record.is_compressed =
        is_compressed(file, record, bytes.number<uint16_t>(at + 10));
    record.stored_bytes = bytes.number<uint32_t>(at + 20);
    record.bytes = bytes.number<uint32_t>(at + 24);
    const auto extra_begin = at + kEntryBytes + length;
    read_wide_sizes(bytes, extra_begin, extra_begin + extra, record);
    check_sizes(file, record);
    records.push_back(std::move(record));
    at = extra_begin + extra + comment;
  }
  return records;
}

bool is_zip_record(
    const MappedFile& file,
    const std::string& name,
    uint64_t header,
    uint64_t data,
    uint64_t bytes) {
  const Bytes all(file);
  return all.begins(header, kHeader) &&
      all.begins(header + kHeaderBytes, name) && data <= file.size() &&
      bytes <= file.size() - data && all.begins(data + bytes, "PK");
}

uint32_t crc32_of(const std::byte* bytes, size_t count) {
  static constexpr CrcTables kTables = make_tables();
  uint32_t crc = 0xffffffff;
  for (; count >= kAtOnce; bytes += kAtOnce, count -= kAtOnce) {
    std::array<uint32_t, 4> words{};
    std::memcpy(words.data(), bytes, kAtOnce);
    words[0] ^= crc;
    crc = 0;
    for (size_t i = 0; i < kAtOnce; ++i) {
      const auto byte = (words[i / 4] >> (8 * (i % 4))) & 0xff;
      crc ^= kTables[kAtOnce - 1 - i][byte];
    }
  }
  for (; count > 0; ++bytes, --count) {
    const auto byte = (crc ^ static_cast<uint32_t>(*bytes)) & 0xff;
    crc = (crc >> 8) ^ kTables[0][byte];
  }
  return ~crc;
}

bool is_zip(const MappedFile& file) {
  return Bytes(file).begins(0, kHeader);
}

} // namespace dtensor::detail
