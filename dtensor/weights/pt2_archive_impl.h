// SPDX-License-Identifier: BSD-3-Clause
// Reader of files from torch.export.save(): a zip of records. Large records are
// read directly from the mapped file. The directory of the zip contains
// checksums, which LibTorch's reader does not verify.
#pragma once

#include <dtensor/weights/mapped_file_impl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace caffe2::serialize {
class PyTorchStreamReader;
}

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

class Pt2Archive {
 public:
  /// Throws ValueError for a file that is not such an archive, is truncated, or
  /// has another version of the format or another order of bytes.
  explicit Pt2Archive(const std::string& path);
  ~Pt2Archive();
  Pt2Archive(const Pt2Archive&) = delete;
  Pt2Archive& operator=(const Pt2Archive&) = delete;

  const std::string& path() const {
    return file_.path();
  }
  /// Returns the names of the records in `folder`, without the folder.
  std::vector<std::string> names_in(const std::string& folder) const;
  /// Returns the full record. Throws ValueError if its checksum differs.
  std::string read(const std::string& name) const;
  /// Returns a record of text. Throws ValueError if it is longer than a JSON
  /// text may be.
  std::string text(const std::string& name) const;

  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint32_t crc32 = 0;
  };
  /// Returns the place of a record in the file, without reading its bytes.
  /// Throws ValueError for a compressed record.
  Place place_of(const std::string& name) const;

 private:
  const ZipRecord& record(const std::string& name) const;
  void check_version() const;

  MappedFile file_;
  // Records by name, without the archive's folder. The records are read and
  // checked before reader_, which allocates as much memory as the records
  // claim.
  std::map<std::string, ZipRecord> records_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

/// Sizes of an archive's records, by name without the archive's folder.
using RecordSizes = std::map<std::string, uint64_t>;

/// An archive that is itself a record of the file `path`.
class NestedArchive {
 public:
  /// Throws ValueError for bytes that are not such an archive, and if its
  /// records together are larger than `bytes`. (Compressed records, and records
  /// that share bytes, could otherwise be many times as large.) `bytes` must
  /// outlive the archive.
  NestedArchive(const std::string& bytes, const std::string& path);
  ~NestedArchive();
  NestedArchive(const NestedArchive&) = delete;
  NestedArchive& operator=(const NestedArchive&) = delete;

  const RecordSizes& sizes() const {
    return sizes_;
  }
  std::string read(const std::string& name) const;

 private:
  std::string path_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  RecordSizes sizes_;
};

/// Name of the record with the order of bytes in an archive's numbers.
constexpr const char* kByteOrder = "byteorder";

/// Throws ValueError if `order`, the text of the record kByteOrder, is not
/// "little". `what` names the archive within the file.
void check_byte_order(
    const std::string& order,
    const std::string& path,
    const std::string& what);

} // namespace dtensor::detail
