// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/pt2_archive_impl.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <caffe2/serialize/inline_container.h>

#include <array>
#include <cstring>
#include <fstream>

namespace dtensor::detail {
namespace {

constexpr std::array<char, 4> kZip = {'P', 'K', '\x03', '\x04'};

// What LibTorch's reader throws is about a zip; say which.
template <class Read>
auto reading(const std::string& path, const std::string& what, const Read& read)
    -> decltype(read()) {
  try {
    return read();
  } catch (const c10::Error& error) {
    refuse_file(path, c10::str(what, ": ", error.what_without_backtrace()));
  }
}

uint16_t short_at(const char* from) {
  return static_cast<uint16_t>(
      static_cast<unsigned char>(from[0]) |
      static_cast<unsigned char>(from[1]) << 8);
}

} // namespace

bool is_zip(const MappedFile& file) {
  return file.size() >= kZip.size() &&
      std::memcmp(file.data(), kZip.data(), kZip.size()) == 0;
}

Pt2Archive::Pt2Archive(const std::string& path)
    : path_(path),
      reader_(reading(path, "not a whole archive", [&] {
        return std::make_unique<caffe2::serialize::PyTorchStreamReader>(path);
      })) {}
Pt2Archive::~Pt2Archive() = default;

std::vector<std::string> Pt2Archive::names_in(const std::string& folder) const {
  std::vector<std::string> names;
  for (const auto& name : reader_->getAllRecords()) {
    if (name.starts_with(folder)) {
      names.push_back(name.substr(folder.size()));
    }
  }
  return names;
}

bool Pt2Archive::has(const std::string& name) const {
  return reader_->hasRecord(name);
}

std::string Pt2Archive::read(const std::string& name) const {
  return reading(path_, name, [&] {
    const auto [data, size] = reader_->getRecord(name);
    return std::string(static_cast<const char*>(data.get()), size);
  });
}

Pt2Archive::Place Pt2Archive::place_of(const std::string& name) const {
  return reading(path_, name, [&]() -> Place {
    constexpr int64_t kMethod = 8; // where a record's header says how it lies
    std::array<char, 2> method = {};
    std::ifstream file(path_, std::ios::binary);
    file.seekg(
        static_cast<int64_t>(reader_->getRecordHeaderOffset(name)) + kMethod);
    file.read(method.data(), method.size());
    if (!file || short_at(method.data()) != 0) {
      refuse_file(path_, name + " is compressed, so that no part can be read");
    }
    return {reader_->getRecordOffset(name), reader_->getRecordSize(name)};
  });
}

} // namespace dtensor::detail
