// SPDX-License-Identifier: BSD-3-Clause
// Reads weights and constants of an exported program: records of raw bytes, and
// a JSON table for each kind. Views of one storage share a record.
#include <dtensor/weights/weight_contents_impl.h>

#include <dtensor/weights/json_document_impl.h>
#include <dtensor/weights/pt2_archive_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/format_text.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

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
          "it has {} sizes and {} strides", sizes.size(), strides.size()));
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
