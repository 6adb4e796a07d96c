// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/pt2_archive_impl.h>

#include <dtensor/weights/json_document_impl.h>

#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <dtensor/format_text.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

// Calls `read`, and names the file and the record in errors. LibTorch's own
// errors only mention a zip and ask for a bug report. Some of its errors come
// from the standard library.
template <class Read>
auto reading(const std::string& path, const std::string& what, const Read& read)
    -> decltype(read()) {
  try {
    return read();
  } catch (const std::exception&) {
    refuse_file(path, what + ": LibTorch's archive reader rejects it");
  }
}

std::string read_record(
    caffe2::serialize::PyTorchStreamReader& reader,
    const std::string& path,
    const std::string& name) {
  return reading(path, name, [&] {
    const auto [data, size] = reader.getRecord(name);
    return std::string(static_cast<const char*>(data.get()), size);
  });
}

// Records with the version of LibTorch's writer. Each archive has one of these
// records.
constexpr const char* kWriterVersion = ".data/version";
constexpr const char* kOldWriterVersion = "version";

// Record with the version of the archive's format. Archives of TorchScript lack
// this record.
constexpr const char* kArchiveVersion = "archive_version";
constexpr std::string_view kReadVersion = "0";

// An archive in memory, as input of LibTorch's reader.
class ArchiveBytes final : public caffe2::serialize::ReadAdapterInterface {
 public:
  ArchiveBytes(const void* data, size_t size)
      : data_(static_cast<const std::byte*>(data)),
        size_(size) {}

  size_t size() const override {
    return size_;
  }
  size_t read(uint64_t at, void* to, size_t count, const char* /*what*/)
      const override {
    const auto begin = std::min<uint64_t>(at, size_);
    const auto some = std::min<uint64_t>(count, size_ - begin);
    if (some > 0) {
      std::memcpy(to, data_ + begin, some);
    }
    return some;
  }

 private:
  const std::byte* data_;
  size_t size_;
};

// Returns the records by name. All records are in one folder, named after the
// original file.
std::map<std::string, ZipRecord> records_of(const MappedFile& file) {
  std::map<std::string, ZipRecord> records;
  std::optional<std::string> folder;
  for (auto& record : read_zip_directory(file)) {
    const auto slash = record.name.find('/') + 1;
    const auto this_folder = record.name.substr(0, slash);
    auto name = record.name.substr(slash);
    const auto [at, is_new] =
        records.try_emplace(std::move(name), std::move(record));
    if (!is_new) {
      refuse_file(file.path(), shown_name(at->first) + " appears twice");
    }
    if (!folder) {
      folder = this_folder;
    }
    if (this_folder != *folder) {
      refuse_file(
          file.path(),
          "its records are in the folders {} and {}, expected one",
          quoted_json(*folder),
          quoted_json(this_folder));
    }
  }
  if (records.count(kWriterVersion) == 0 &&
      records.count(kOldWriterVersion) == 0) {
    refuse_file(
        file.path(),
        "truncated or damaged archive: no record {}",
        kWriterVersion);
  }
  return records;
}

} // namespace

NestedArchive::NestedArchive(const std::string& bytes, const std::string& path)
    : path_(path),
      reader_(reading(path, "damaged nested archive", [&] {
        return std::make_unique<caffe2::serialize::PyTorchStreamReader>(
            std::make_shared<ArchiveBytes>(bytes.data(), bytes.size()));
      })) {
  uint64_t remaining = bytes.size();
  for (const auto& name : reading(path, "damaged nested archive", [&] {
         return reader_->getAllRecords();
       })) {
    const auto size =
        reading(path, name, [&] { return reader_->getRecordSize(name); });
    if (size > remaining) {
      refuse_file(
          path,
          "the records of a nested archive are larger than its {} bytes",
          bytes.size());
    }
    remaining -= size;
    sizes_[name] = size;
  }
}

NestedArchive::~NestedArchive() = default;

std::string NestedArchive::read(const std::string& name) const {
  return read_record(*reader_, path_, name);
}

void check_byte_order(
    const std::string& order,
    const std::string& path,
    const std::string& what) {
  if (order != "little") {
    refuse_file(
        path,
        what + " have bytes in the order " + quoted_json(order) +
            ", but only little-endian files are supported");
  }
}

Pt2Archive::Pt2Archive(const std::string& path)
    : file_(path),
      records_(records_of(file_)),
      reader_(reading(path, "truncated or damaged archive", [&] {
        return std::make_unique<caffe2::serialize::PyTorchStreamReader>(
            std::make_shared<ArchiveBytes>(file_.data(), file_.size()));
      })) {
  if (records_.count(kByteOrder) > 0) {
    check_byte_order(read(kByteOrder), path, "its weights");
  }
  if (records_.count(kArchiveVersion) > 0) {
    check_version();
  }
}
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
    refuse_file(path(), "no " + shown_name(name) + " in it");
  }
  return found->second;
}

void Pt2Archive::check_version() const {
  constexpr std::string_view kBlanks = " \n";
  auto version = text(kArchiveVersion);
  version.erase(version.find_last_not_of(kBlanks) + 1);
  if (version != kReadVersion) {
    refuse_file_with(
        "Write it with torch.export.save() of PyTorch 2.8 or newer",
        path(),
        format_text(
            "its {} is {}, but this library reads {}",
            kArchiveVersion,
            quoted_json(version),
            kReadVersion));
  }
}

std::string Pt2Archive::text(const std::string& name) const {
  const auto bytes = record(name).bytes;
  if (bytes > kMostJsonBytes) {
    refuse_file(
        path(),
        "{} has {} bytes, more than {}",
        shown_name(name),
        bytes,
        kMostJsonBytes);
  }
  return read(name);
}

std::string Pt2Archive::read(const std::string& name) const {
  const auto expected = record(name).crc32;
  auto bytes = read_record(*reader_, path(), name);
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  if (crc32_of(data, bytes.size()) != expected) {
    refuse_file(path(), name + " is damaged: wrong checksum");
  }
  return bytes;
}

Pt2Archive::Place Pt2Archive::place_of(const std::string& name) const {
  const auto& about = record(name);
  if (about.is_compressed) {
    refuse_file(path(), name + " is compressed, but must be stored");
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
    refuse_file(path(), name + " is damaged: wrong offset");
  }
  return place;
}

} // namespace dtensor::detail
