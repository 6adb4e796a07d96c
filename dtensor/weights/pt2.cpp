// SPDX-License-Identifier: BSD-3-Clause
// Weights and constants of an exported program: records of raw bytes, and a
// table in JSON for each kind. Views of one storage share a record.
#include <dtensor/weights/weight_contents_impl.h>

#include <dtensor/weights/pt2_archive_impl.h>

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

using Json = nlohmann::json;

// Counts the elements that a weight reaches over, from its first.
uint64_t reach_of(const Sizes& sizes, const Sizes& strides) {
  uint64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) {
      return 0;
    }
    last +=
        static_cast<uint64_t>(sizes[d] - 1) * static_cast<uint64_t>(strides[d]);
  }
  return last + 1;
}

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
  [[noreturn]] void refuse(const std::string& why) const {
    refuse_file(archive_.path(), why);
  }

  void read_config(const std::string& config) {
    const auto table =
        Json::parse(archive_.read(folder_ + config), nullptr, false);
    try {
      for (const auto& [name, about] : table.at("config").items()) {
        add(name, about);
      }
    } catch (const Json::exception& error) {
      refuse(c10::str(folder_, config, ": ", error.what()));
    }
  }

  int64_t whole(const Json& number, const std::string& name) const {
    const auto& value = number.at("as_int");
    if (!value.is_number_unsigned()) {
      refuse(c10::str(name, " has a size that is none: ", number.dump()));
    }
    return value.get<int64_t>();
  }

  void add(const std::string& name, const Json& about) {
    const auto& path = about.at("path_name").get_ref<const std::string&>();
    const auto& meta = about.at("tensor_meta");
    const auto number = meta.at("dtype").get<int64_t>();
    const auto* format = exported_format(number);
    WeightInfo info;
    info.name = name;
    for (const auto& size : meta.at("sizes")) {
      if (!add_size(info.sizes, static_cast<uint64_t>(whole(size, name)))) {
        refuse(c10::str(name, " has a size of ", size.dump()));
      }
    }
    const bool pickled = about.at("use_pickle").get<bool>();
    info.format = pickled   ? "a pickled tensor"
        : format == nullptr ? c10::str("of dtype number ", number)
                            : std::string(format->name);
    if (pickled || format == nullptr) {
      contents_.add(std::move(info), nullptr, file_, 0);
      return;
    }
    info.dtype = format->dtype;
    add_stored(std::move(info), *format, meta, path);
  }

  // One whose elements lie in the file `path`, as strides and an offset say.
  void add_stored(
      WeightInfo info,
      const WeightFormat& format,
      const Json& meta,
      const std::string& path) {
    const auto name = info.name;
    Sizes strides;
    for (const auto& stride : meta.at("strides")) {
      strides.push_back(whole(stride, name));
    }
    if (strides.size() != info.sizes.size()) {
      refuse(c10::str(name, " has not as many strides as sizes"));
    }
    const auto place = archive_.place_of(folder_ + path);
    const auto item = static_cast<uint64_t>(format.bytes);
    const auto begin =
        static_cast<uint64_t>(whole(meta.at("storage_offset"), name)) * item;
    const auto bytes = reach_of(info.sizes, strides) * item;
    if (begin > place.bytes || bytes > place.bytes - begin) {
      refuse(c10::str(
          name, " reaches to ", begin + bytes, " of ", place.bytes, " bytes"));
    }
    contents_.add(
        std::move(info), &format, file_, place.offset + begin, strides);
    if (begin == 0 && bytes == place.bytes) {
      contents_.stored.back().checksum = {place.crc32, place.bytes};
    }
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
