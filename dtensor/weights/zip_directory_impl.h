// SPDX-License-Identifier: BSD-3-Clause
// Directory of a zip file. The directory contains checksums, which LibTorch's
// reader does not verify.
#pragma once

#include <dtensor/weights/mapped_file_impl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dtensor::detail {

struct ZipRecord {
  std::string name;   // including its folders
  uint32_t crc32 = 0; // of the uncompressed bytes
  bool is_compressed = false;
  uint64_t stored_bytes = 0; // in the file
  uint64_t bytes = 0;        // uncompressed
};

/// Returns the maximum size to which a compressed record may unpack.
uint64_t max_unpacked_bytes(uint64_t stored_bytes);

/// Reads all records. Throws ValueError for a damaged directory, a stored
/// record that exceeds the file, and a compressed record that would unpack to
/// more than max_unpacked_bytes().
std::vector<ZipRecord> read_zip_directory(const MappedFile& file);

/// True if `bytes` bytes of a record with that name begin at `data`. The
/// record's header must be right before these bytes, and another header right
/// behind them.
bool is_zip_record(
    const MappedFile& file,
    const std::string& name,
    uint64_t header,
    uint64_t data,
    uint64_t bytes);

/// Returns the CRC-32 as used by zip files.
uint32_t crc32_of(const std::byte* bytes, size_t count);

/// True if the beginning of the file is that of a zip file.
bool is_zip(const MappedFile& file);

} // namespace dtensor::detail
