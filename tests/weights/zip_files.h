// SPDX-License-Identifier: BSD-3-Clause
// Archives for tests and fuzzing, built record by record.
#pragma once

#include <dtensor/weights/pt2_archive_impl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dtensor::test_weights {

/// A record of an archive.
struct ZipEntry {
  std::string name;
  std::string bytes; // stored bytes
  bool is_compressed = false;
  /// Size declared in the directory; default: the size of `bytes`.
  uint32_t declared_bytes = 0;
  /// Unpacked bytes, for the checksum; default: `bytes`.
  std::string unpacked = {};
  /// Gives the sizes in the extra field of the directory, as for records of
  /// more than 4 GB.
  bool is_wide = false;
};

template <class Number>
void append_number(std::string& to, Number number) {
  to.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

/// Appends the fields that a local header and a directory entry share.
inline void append_fields(std::string& to, const ZipEntry& entry) {
  const auto& whole = entry.unpacked.empty() ? entry.bytes : entry.unpacked;
  const auto said = entry.declared_bytes == 0
      ? static_cast<uint32_t>(whole.size())
      : entry.declared_bytes;
  append_number<uint16_t>(to, 20); // version
  append_number<uint16_t>(to, 0);
  append_number<uint16_t>(to, entry.is_compressed ? 8 : 0);
  append_number<uint32_t>(to, 0); // time and date
  append_number(
      to,
      detail::crc32_of(
          reinterpret_cast<const std::byte*>(whole.data()), whole.size()));
  append_number(to, static_cast<uint32_t>(entry.bytes.size()));
  append_number(to, said);
  append_number(to, static_cast<uint16_t>(entry.name.size()));
  append_number<uint16_t>(to, 0); // no extra field
}

/// Moves the sizes of a directory entry to its extra field, behind a field with
/// a time. `fields` are those of append_fields().
inline std::string wide_extra_of(std::string& fields) {
  std::string sizes;
  for (const size_t at : {size_t{18}, size_t{14}}) { // unpacked, then stored
    sizes += fields.substr(at, 4) + std::string(4, '\0');
    fields.replace(at, 4, 4, '\xff');
  }
  std::string extra = "UT";
  append_number<uint16_t>(extra, 1);
  extra += '\0';
  append_number<uint16_t>(extra, 1);
  append_number(extra, static_cast<uint16_t>(sizes.size()));
  extra += sizes;
  fields.resize(fields.size() - sizeof(uint16_t));
  append_number(fields, static_cast<uint16_t>(extra.size()));
  return extra;
}

/// Returns the bytes of an archive.
inline std::string zip_of(const std::vector<ZipEntry>& entries) {
  std::string zip;
  std::string directory;
  for (const auto& entry : entries) {
    const auto offset = static_cast<uint32_t>(zip.size());
    zip += "PK\3\4";
    append_fields(zip, entry);
    zip += entry.name + entry.bytes;
    directory += "PK\1\2";
    append_number<uint16_t>(directory, 20);
    std::string fields;
    append_fields(fields, entry);
    const auto extra = entry.is_wide ? wide_extra_of(fields) : "";
    directory += fields;
    directory.append(10, '\0'); // no comment, disk or attributes
    append_number(directory, offset);
    directory += entry.name + extra;
  }
  const auto begin = static_cast<uint32_t>(zip.size());
  zip += directory + "PK\5\6";
  zip.append(4, '\0');
  append_number(zip, static_cast<uint16_t>(entries.size()));
  append_number(zip, static_cast<uint16_t>(entries.size()));
  append_number(zip, static_cast<uint32_t>(directory.size()));
  append_number(zip, begin);
  zip.append(2, '\0');
  return zip;
}

/// Returns one stored (uncompressed) deflate block of up to 65,535 bytes.
inline std::string deflated(const std::string& bytes) {
  std::string block(1, '\1');
  append_number(block, static_cast<uint16_t>(bytes.size()));
  append_number(block, static_cast<uint16_t>(~bytes.size()));
  return block + bytes;
}

/// Returns the records of an exported program with one record of weights and
/// their table.
inline std::vector<ZipEntry> program_entries(
    const std::string& table,
    const std::string& weights) {
  return {
      {"m/version", "3\n"},
      {"m/data/weights/weights_config.json", table},
      {"m/data/weights/weight_0", weights}};
}

} // namespace dtensor::test_weights
