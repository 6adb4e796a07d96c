// SPDX-License-Identifier: BSD-3-Clause
// Reader of files from torch.export.save(): a zip of records. Large records are
// read directly from the mapped file.
#pragma once

#include <dtensor/weights/mapped_file_impl.h>
#include <dtensor/weights/zip_directory_impl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace dtensor::detail {

class Pt2Archive {
 public:
  /// Throws ValueError for a file that is not such an archive, or is truncated.
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

  MappedFile file_;
  // Records by name, without the archive's folder. They are read and checked
  // before reader_, which allocates as much memory as they claim.
  std::map<std::string, ZipRecord> records_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

/// Returns a record of an archive that is itself a record (`bytes`) of the file
/// `path`. Throws ValueError if its records together are larger than `bytes`.
/// Compressed records, and records that share bytes, could otherwise be many
/// times as large.
std::string record_in_archive(
    const std::string& bytes,
    const std::string& name,
    const std::string& path);

} // namespace dtensor::detail
