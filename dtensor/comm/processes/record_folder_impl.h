// SPDX-License-Identifier: BSD-3-Clause
// RecordFolder: a folder into which this user alone writes, also where other
// users may have made things of its name before.
#pragma once

#include <dtensor/comm/processes/descriptor_impl.h>

#include <string>

namespace dtensor::detail {

class RecordFolder {
 public:
  /// Opens "dtensor-flight-<user>" where temporary files go, made with mode
  /// 0700. If that belongs to another user, is writable by others or is no
  /// folder, makes a fresh folder beside it. Throws RuntimeError.
  static RecordFolder of_user();
  /// Opens the folder that the user named, made with its parents if it is not
  /// there. Throws RuntimeError.
  static RecordFolder named(const std::string& path);

  /// Replaces the file `name` in the folder, with mode 0600, and returns its
  /// path. Follows no link and waits for no reader.
  /// Throws RuntimeError.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  RecordFolder(Descriptor folder, std::string path);

  Descriptor folder_;
  std::string path_;
};

} // namespace dtensor::detail
