// SPDX-License-Identifier: BSD-3-Clause
// Files for tests: files of write_files.py, and files that the tests make.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace dtensor::test_weights {

/// A temporary folder, removed with this object.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }

  /// Writes a file to the folder and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const;

 private:
  std::filesystem::path path_;
};

/// Path of the files written by write_files.py. If the script failed, the path
/// is empty, and the reason is given.
struct WrittenFiles {
  std::string folder;
  std::string why_not;
};
const WrittenFiles& written_files();

/// Loads a dictionary that torch.save wrote.
std::map<std::string, at::Tensor> saved_tensors(const std::string& path);

/// Returns the bytes of a safetensors file with that header.
std::string safetensors_of(const std::string& header, const std::string& data);

/// Returns the bytes of a safetensors file of float32 tensors.
std::string safetensors_of(const std::map<std::string, at::Tensor>& tensors);

} // namespace dtensor::test_weights
