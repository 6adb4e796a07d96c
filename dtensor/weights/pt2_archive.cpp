// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/pt2_archive_impl.h>

#include <dtensor/weights/json_document_impl.h>
#include <dtensor/weights/weight_contents_impl.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <dtensor/format_text.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

namespace dtensor::detail {
namespace {

// Calls `read`, and adds the file and the record to errors. LibTorch's reader
// only mentions a zip, and some of its errors come from the standard library.
template <class Read>
auto reading(const std::string& path, const std::string& what, const Read& read)
    -> decltype(read()) {
  constexpr size_t kLongestReason = 300;
  try {
    return read();
  } catch (const c10::Error& error) {
    const std::string why = error.what_without_backtrace();
    refuse_file(path, what + ": " + why.substr(0, kLongestReason));
  } catch (const std::exception&) {
    refuse_file(path, what + ": LibTorch's archive reader rejects it");
  }
}

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

// Returns the records by name. All are in one folder, named after the original
// file.
std::map<std::string, ZipRecord> records_of(const MappedFile& file) {
  std::map<std::string, ZipRecord> records;
  for (auto& record : read_zip_directory(file)) {
    auto name = record.name.substr(record.name.find('/') + 1);
    const auto [at, is_new] =
        records.try_emplace(std::move(name), std::move(record));
    if (!is_new) {
      refuse_file(file.path(), shown_name(at->first) + " appears twice");
    }
  }
  return records;
}

} // namespace

std::string record_in_archive(
    const std::string& bytes,
    const std::string& name,
    const std::string& path) {
  auto record = reading(path, name, [&]() -> std::optional<std::string> {
    caffe2::serialize::PyTorchStreamReader reader(
        std::make_unique<ArchiveBytes>(bytes.data(), bytes.size()));
    uint64_t remaining = bytes.size();
    for (const auto& other : reader.getAllRecords()) {
      const auto size = reader.getRecordSize(other);
      if (size > remaining) {
        return std::nullopt;
      }
      remaining -= size;
    }
    const auto [data, size] = reader.getRecord(name);
    return std::string(static_cast<const char*>(data.get()), size);
  });
  if (!record) {
    refuse_file(
        path,
        detail::format_text(
            "the records of a nested archive are larger than its {} bytes",
            bytes.size()));
  }
  return *std::move(record);
}

Pt2Archive::Pt2Archive(const std::string& path)
    : file_(path),
      records_(records_of(file_)),
      reader_(reading(path, "truncated or damaged archive", [&] {
        return std::make_unique<caffe2::serialize::PyTorchStreamReader>(
            std::make_shared<ArchiveBytes>(file_.data(), file_.size()));
      })) {}
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

std::string Pt2Archive::read(const std::string& name) const {
  const auto expected = record(name).crc32;
  auto bytes = reading(path(), name, [&] {
    const auto [data, size] = reader_->getRecord(name);
    return std::string(static_cast<const char*>(data.get()), size);
  });
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

namespace {

// Reads weights and constants of an exported program: records of raw bytes, and
// a JSON table for each kind. Views of one storage share a record.

// Maximum size of a weight that repeats elements by strides of 0. Reading such
// a weight allocates memory for all elements, although the record has few.
constexpr uint64_t kMaxExpandedBytes = uint64_t{64} << 20;
constexpr uint64_t kMostRepetitions = 16;

class Table {
 public:
  Table(
      WeightFile::Contents& contents,
      const Pt2Archive& archive,
      std::string folder)
      : contents_(contents),
        file_(*contents.files.back()),
        archive_(archive),
        folder_(std::move(folder)) {}

  void read() {
    for (const auto& name : archive_.names_in(folder_)) {
      if (name.ends_with("_config.json")) {
        read_config(name);
      }
    }
  }

 private:
  void read_config(const std::string& config) {
    const JsonDocument table(
        archive_.read(folder_ + config),
        weight_origin(archive_.path(), folder_ + config));
    for (const auto& [name, about] : table.root().at("config").members()) {
      add(name, about);
    }
  }

  void add(const std::string& name, const JsonView& about) {
    const auto meta = about.at("tensor_meta");
    const auto number = meta.at("dtype").integer();
    const auto* format = exported_format(number);
    WeightInfo info;
    info.name = name;
    for (const auto& size : meta.at("sizes").elements()) {
      const auto value = size.at("as_int").unsigned_integer(kMostElements);
      if (!add_size(info.sizes, value)) {
        size.refuse("with this size it has more than 2^48 elements");
      }
    }
    const bool pickled = about.at("use_pickle").boolean();
    info.format = pickled   ? "a pickled tensor"
        : format == nullptr ? c10::str("of unknown dtype number ", number)
                            : std::string(format->name);
    if (pickled || format == nullptr) {
      contents_.add(std::move(info), nullptr, file_, 0);
      return;
    }
    info.dtype = format->dtype;
    add_stored(std::move(info), *format, about);
  }

  // Adds a weight with its elements in a record, at the given strides and
  // offset.
  void add_stored(
      WeightInfo info,
      const WeightFormat& format,
      const JsonView& about) {
    const auto meta = about.at("tensor_meta");
    const auto strides = strides_of(info.sizes, meta);
    const auto place =
        archive_.place_of(folder_ + about.at("path_name").text());
    const auto item = static_cast<uint64_t>(format.bytes);
    const auto begin =
        meta.at("storage_offset").at("as_int").unsigned_integer(kMostElements) *
        item;
    const auto reach = reach_of(info.sizes, strides);
    if (!reach || begin > place.bytes ||
        *reach > (place.bytes - begin) / item) {
      about.refuse(detail::format_text(
          "it begins at byte {} and spans {} elements, beyond the {} bytes of "
          "its record",
          begin,
          reach ? c10::str(*reach) : "more than 2^48",
          place.bytes));
    }
    const auto bytes = static_cast<uint64_t>(numel(info.sizes)) * item;
    if (bytes > std::max(kMaxExpandedBytes, kMostRepetitions * place.bytes)) {
      about.refuse(detail::format_text(
          "its strides expand the {} bytes of its record to {}",
          place.bytes,
          bytes));
    }
    contents_.add(
        std::move(info), &format, file_, place.offset + begin, strides);
    if (begin == 0 && *reach * item == place.bytes) {
      contents_.stored.back().checksum = {place.crc32, place.bytes};
    }
  }

  static Sizes strides_of(const Sizes& sizes, const JsonView& meta) {
    Sizes strides;
    for (const auto& stride : meta.at("strides").elements()) {
      strides.push_back(static_cast<int64_t>(
          stride.at("as_int").unsigned_integer(kMostElements)));
    }
    if (strides.size() != sizes.size()) {
      meta.refuse(detail::format_text(
          "it has {} and {}",
          pluralize(sizes.size(), "size"),
          pluralize(strides.size(), "stride")));
    }
    return strides;
  }

  WeightFile::Contents& contents_;
  const MappedFile& file_;
  const Pt2Archive& archive_;
  std::string folder_;
};

} // namespace

void read_pt2(WeightFile::Contents& contents, MappedFilePtr file) {
  contents.files.push_back(std::move(file));
  const Pt2Archive archive(contents.files.back()->path());
  for (const auto* folder : {"data/weights/", "data/constants/"}) {
    Table(contents, archive, folder).read();
  }
}

} // namespace dtensor::detail
