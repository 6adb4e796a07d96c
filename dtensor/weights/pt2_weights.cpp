// SPDX-License-Identifier: BSD-3-Clause
// Reads weights and constants of an exported program: records of raw bytes, and
// a JSON table for each kind. Views of one storage share a record.
#include <dtensor/weights/weight_contents_impl.h>

#include <dtensor/format_text.h>
#include <dtensor/weights/pt2_archive_impl.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace dtensor::detail {
namespace {

// Maximum size of a weight that repeats elements by strides of 0. Reading such
// a weight allocates memory for all elements, although the record has few.
constexpr uint64_t kMaxExpandedBytes = uint64_t{64} << 20;
constexpr uint64_t kMostRepetitions = 16;

// Counts the bytes of all weights, with tied weights counted once. Weights that
// share records could otherwise take many times the memory of the file.
class ReadBytes {
 public:
  explicit ReadBytes(uint64_t file_bytes)
      : most_(kMaxExpandedBytes + kMostRepetitions * file_bytes) {}

  /// Returns false if the weights, including this one, take too much memory.
  bool add(
      uint64_t offset,
      const Sizes& sizes,
      const Sizes& strides,
      uint64_t bytes) {
    if (places_.emplace(offset, bytes, sizes, strides).second) {
      bytes_ += bytes;
    }
    return bytes_ <= most_;
  }
  uint64_t most() const {
    return most_;
  }

 private:
  uint64_t most_;
  uint64_t bytes_ = 0;
  std::set<std::tuple<uint64_t, uint64_t, Sizes, Sizes>> places_;
};

class Table {
 public:
  Table(
      WeightFile::Contents& contents,
      const Pt2Archive& archive,
      ReadBytes& read_bytes,
      std::string folder)
      : contents_(contents),
        read_bytes_(read_bytes),
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
        archive_.text(folder_ + config),
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
        size.refuse(why_not_added(info.sizes));
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
    check_reach(about, reach, begin, item, place.bytes);
    const auto bytes = static_cast<uint64_t>(numel(info.sizes)) * item;
    check_memory(about, info.sizes, strides, bytes, place, begin);
    contents_.add(
        std::move(info), &format, file_, place.offset + begin, strides);
    if (begin == 0 && *reach * item == place.bytes) {
      contents_.stored.back().checksum = {place.crc32, place.bytes};
    }
  }

  static void check_reach(
      const JsonView& about,
      std::optional<uint64_t> reach,
      uint64_t begin,
      uint64_t item,
      uint64_t bytes) {
    if (!reach || begin > bytes || *reach > (bytes - begin) / item) {
      about.refuse(
          "it begins at byte {} and spans {} elements, beyond the {} bytes of "
          "its record",
          begin,
          reach ? c10::str(*reach) : "more than 2^48",
          bytes);
    }
  }

  // Refuses weights that repeat so many elements that they take too much
  // memory.
  void check_memory(
      const JsonView& about,
      const Sizes& sizes,
      const Sizes& strides,
      uint64_t bytes,
      const Pt2Archive::Place& place,
      uint64_t begin) {
    if (bytes > std::max(kMaxExpandedBytes, kMostRepetitions * place.bytes)) {
      about.refuse(
          "its strides expand the {} bytes of its record to {}",
          place.bytes,
          bytes);
    }
    if (!read_bytes_.add(place.offset + begin, sizes, strides, bytes)) {
      about.refuse(
          "with it the weights have more than {} bytes, too many for a file of "
          "{} bytes",
          read_bytes_.most(),
          file_.size());
    }
  }

  static Sizes strides_of(const Sizes& sizes, const JsonView& meta) {
    Sizes strides;
    for (const auto& stride : meta.at("strides").elements()) {
      strides.push_back(static_cast<int64_t>(
          stride.at("as_int").unsigned_integer(kMostElements)));
    }
    if (strides.size() != sizes.size()) {
      meta.refuse(
          "it has {} and {}",
          pluralize(sizes.size(), "size"),
          pluralize(strides.size(), "stride"));
    }
    return strides;
  }

  WeightFile::Contents& contents_;
  ReadBytes& read_bytes_;
  const MappedFile& file_;
  const Pt2Archive& archive_;
  std::string folder_;
};

} // namespace

void read_pt2(WeightFile::Contents& contents, MappedFilePtr file) {
  contents.files.push_back(std::move(file));
  const Pt2Archive archive(contents.files.back()->path());
  ReadBytes read_bytes(contents.files.back()->size());
  for (const auto* folder : {"data/weights/", "data/constants/"}) {
    Table(contents, archive, read_bytes, folder).read();
  }
}

} // namespace dtensor::detail
