// SPDX-License-Identifier: BSD-3-Clause
// What a zip says of its records, beside what LibTorch's reader tells: it looks
// at no checksum.
#pragma once

#include <dtensor/weights/mapped_file_impl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dtensor::detail {

struct ZipRecord {
  std::string name;   // with its folders
  uint32_t crc32 = 0; // of its bytes, uncompressed
  bool is_compressed = false;
  uint64_t stored_bytes = 0; // in the file
  uint64_t bytes = 0;        // uncompressed
};

/// The largest size that a compressed record may unpack to.
uint64_t most_unpacked_bytes(uint64_t stored_bytes);

/// Reads all records. Throws ValueError for a directory that is damaged, a
/// stored record that the file cannot hold, and a compressed one that would
/// unpack to more than most_unpacked_bytes().
std::vector<ZipRecord> read_zip_directory(const MappedFile& file);

/// Whether `bytes` of a record of that name begin at `data`: its header is
/// right before them, and another one right behind.
bool is_zip_record(
    const MappedFile& file,
    const std::string& name,
    uint64_t header,
    uint64_t data,
    uint64_t bytes);

/// CRC-32, as zips have it.
uint32_t crc32_of(const std::byte* bytes, size_t count);

/// Whether the file begins as a zip does.
bool is_zip(const MappedFile& file);

} // namespace dtensor::detail
