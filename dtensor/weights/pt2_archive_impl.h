// SPDX-License-Identifier: BSD-3-Clause
// What torch.export.save() writes: a zip of records, of which large ones are
// read where they lie.
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
  /// Throws ValueError for a file that is no such archive, or is cut short.
  explicit Pt2Archive(const std::string& path);
  ~Pt2Archive();
  Pt2Archive(const Pt2Archive&) = delete;
  Pt2Archive& operator=(const Pt2Archive&) = delete;

  const std::string& path() const {
    return file_.path();
  }
  /// Names of the records in `folder`, without it.
  std::vector<std::string> names_in(const std::string& folder) const;
  /// All of a record. Throws ValueError where its checksum is another one.
  std::string read(const std::string& name) const;

  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint32_t crc32 = 0;
  };
  /// Where a record lies in the file. Throws ValueError for a compressed one.
  /// Its bytes are not looked at.
  Place place_of(const std::string& name) const;

 private:
  const ZipRecord& record(const std::string& name) const;

  MappedFile file_;
  // By their names without the archive's folder. Read before the reader, which
  // takes as much memory as they say.
  std::map<std::string, ZipRecord> records_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

/// A record of an archive that is itself a record, `bytes`, of the file `path`.
/// Throws ValueError if its records together are larger than `bytes`:
/// compressed ones, and ones that share their bytes, may be many times as
/// large.
std::string record_in_archive(
    const std::string& bytes,
    const std::string& name,
    const std::string& path);

} // namespace dtensor::detail
