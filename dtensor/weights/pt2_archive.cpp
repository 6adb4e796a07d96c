// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/pt2_archive_impl.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <caffe2/serialize/inline_container.h>

#include <cstddef>

namespace dtensor::detail {
namespace {

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

// Records are in a folder that is called as the file was.
std::map<std::string, ZipRecord> records_of(const MappedFile& file) {
  std::map<std::string, ZipRecord> records;
  for (auto& [name, record] : read_zip_directory(file)) {
    records[name.substr(name.find('/') + 1)] = std::move(record);
  }
  return records;
}

} // namespace

Pt2Archive::Pt2Archive(const std::string& path)
    : file_(path),
      reader_(reading(
          path,
          "not a whole archive",
          [&] {
            return std::make_unique<caffe2::serialize::PyTorchStreamReader>(
                path);
          })),
      records_(records_of(file_)) {}
Pt2Archive::~Pt2Archive() = default;

std::vector<std::string> Pt2Archive::names_in(const std::string& folder) const {
  std::vector<std::string> names;
  for (const auto& [name, record] : records_) {
    if (name.starts_with(folder)) {
      names.push_back(name.substr(folder.size()));
    }
  }
  return names;
}

const ZipRecord& Pt2Archive::record(const std::string& name) const {
  const auto found = records_.find(name);
  if (found == records_.end()) {
    refuse_file(path(), "no " + name + " in it");
  }
  return found->second;
}

std::string Pt2Archive::read(const std::string& name) const {
  const auto expected = record(name).crc32;
  auto bytes = reading(path(), name, [&] {
    const auto [data, size] = reader_->getRecord(name);
    return std::string(static_cast<const char*>(data.get()), size);
  });
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  if (crc32_of(data, bytes.size()) != expected) {
    refuse_file(path(), name + " is damaged: its checksum is another one");
  }
  return bytes;
}

Pt2Archive::Place Pt2Archive::place_of(const std::string& name) const {
  const auto& about = record(name);
  if (about.is_compressed) {
    refuse_file(path(), name + " is compressed, so that no part can be read");
  }
  const auto header = reading(
      path(), name, [&] { return reader_->getRecordHeaderOffset(name); });
  const auto place = reading(path(), name, [&]() -> Place {
    return {
        reader_->getRecordOffset(name),
        reader_->getRecordSize(name),
        about.crc32};
  });
  if (!is_zip_record(file_, about.name, header, place.offset, place.bytes)) {
    refuse_file(path(), name + " is damaged: it does not lie where it should");
  }
  return place;
}

} // namespace dtensor::detail
