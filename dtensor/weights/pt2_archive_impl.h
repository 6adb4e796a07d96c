// SPDX-License-Identifier: BSD-3-Clause
// What torch.export.save() writes: a zip of records, of which large ones are
// read where they lie.
#pragma once

#include <dtensor/weights/mapped_file_impl.h>

#include <cstdint>
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
    return path_;
  }
  /// Names of the records in `folder`, without it.
  std::vector<std::string> names_in(const std::string& folder) const;
  bool has(const std::string& name) const;
  /// All of a record; its checksum is looked at.
  std::string read(const std::string& name) const;

  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  /// Where a record lies in the file. Throws ValueError for a compressed one.
  Place place_of(const std::string& name) const;

 private:
  std::string path_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

/// Whether the file begins as a zip does.
bool is_zip(const MappedFile& file);

} // namespace dtensor::detail
