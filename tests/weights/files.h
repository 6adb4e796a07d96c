// SPDX-License-Identifier: BSD-3-Clause
// Files to test with: those of write_files.py, and some made here.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace dtensor::test_weights {

/// A folder that is gone with this.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }

  /// Writes a file there and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const;

 private:
  std::filesystem::path path_;
};

/// What write_files.py wrote; empty, with the reason, where it could not.
struct WrittenFiles {
  std::string folder;
  std::string why_not;
};
const WrittenFiles& written_files();

/// What torch.save wrote of a dictionary.
std::map<std::string, at::Tensor> saved_tensors(const std::string& path);

/// The bytes of a safetensors file with that header.
std::string safetensors_of(const std::string& header, const std::string& data);

/// The bytes of a safetensors file of float32 tensors.
std::string safetensors_of(const std::map<std::string, at::Tensor>& tensors);

} // namespace dtensor::test_weights
