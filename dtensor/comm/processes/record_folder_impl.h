// SPDX-License-Identifier: BSD-3-Clause
// RecordFolder: a folder that only this user can write, even if other users
// have created entries under its name before.
#pragma once

#include <dtensor/comm/processes/descriptor_impl.h>

#include <string>

namespace dtensor::detail {

class RecordFolder {
 public:
  /// Opens "dtensor-flight-<user>" in the temporary directory, created with
  /// mode 0700. Creates a new folder in the temporary directory if this entry
  /// belongs to another user, is writable by others, or is not a folder. Throws
  /// RuntimeError.
  static RecordFolder of_user();
  /// Opens the folder at `path`, which the user chose. Creates it and its
  /// parents if necessary. Throws RuntimeError.
  static RecordFolder named(const std::string& path);

  /// Replaces the file `name` in the folder, with mode 0600, and returns its
  /// path. Does not follow links or block on FIFOs. Throws RuntimeError.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  RecordFolder(Descriptor folder, std::string path);

  Descriptor folder_;
  std::string path_;
};

} // namespace dtensor::detail
