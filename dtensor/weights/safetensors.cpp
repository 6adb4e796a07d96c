// SPDX-License-Identifier: BSD-3-Clause
// safetensors: eight bytes with the length of a header in JSON, the header, and
// the bytes of all tensors. An index names the file of each tensor. Files of
// torch.distributed.checkpoint, and ours, hold pieces of tensors: their header
// says under DCP_SHARDING_INFO where each begins.
#include <dtensor/weights/weight_contents_impl.h>

#include <dtensor/weights/checksums_impl.h>

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace dtensor::detail {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr const char* kShardingKey = "DCP_SHARDING_INFO";
constexpr uint64_t kMostElements = uint64_t{1} << 48; // as add_size() has it

// The text between the length and the bytes.
std::string_view header_of(const MappedFile& file) {
  uint64_t length = 0;
  if (file.size() >= kLengthBytes) {
    std::memcpy(&length, file.data(), kLengthBytes);
  }
  if (length == 0 || length > file.size() - kLengthBytes) {
    refuse_file(
        file.path(),
        c10::str("no header of ", length, " bytes in ", file.size(), " bytes"));
  }
  return {reinterpret_cast<const char*>(file.data() + kLengthBytes), length};
}

// Throws for a name that stands twice in an object: of two readers one might
// take the first, and one the last.
Json parsed(const MappedFile& file, std::string_view text) {
  std::vector<std::set<std::string>> names; // of the objects that are open
  const auto look = [&](int /*depth*/, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& name = value.get_ref<const std::string&>();
      if (!names.back().insert(name).second) {
        refuse_file(file.path(), c10::str(name, " is there twice"));
      }
    }
    return true;
  };
  return Json::parse(text, look, false);
}

void add_metadata(WeightFile::Contents& contents, const Json& metadata) {
  for (const auto& [key, value] : metadata.items()) {
    if (value.is_string() && key != kShardingKey && key != kChecksumsKey) {
      contents.metadata.insert_or_assign(key, value.get<std::string>());
    }
  }
}

// What the __metadata__ of a header says of its tensors.
class Notes {
 public:
  explicit Notes(const MappedFile& file) : file_(file) {}

  void read(const Json& metadata) {
    sharding_ = table(metadata, kShardingKey);
    checksums_ = table(metadata, kChecksumsKey);
  }

  PieceNotes of(const std::string& name) const {
    PieceNotes notes;
    if (!sharding_.is_null()) {
      Sizes offsets;
      for (const auto& offset : sharding_.at(name).at("saved_offsets")) {
        if (!offset.is_number_unsigned() ||
            offset.get<uint64_t>() > kMostElements) {
          refuse_file(
              file_.path(),
              c10::str("no offset of ", name, ": ", offset.dump()));
        }
        offsets.push_back(offset.get<int64_t>());
      }
      notes.offsets = std::move(offsets);
    }
    if (!checksums_.is_null()) {
      const auto& texts = checksums_.at("xxh3");
      const auto& block = checksums_.at("block");
      notes.block = block.is_number_unsigned() ? block.get<size_t>() : 0;
      if (notes.block == 0 || notes.block > kMostElements) {
        refuse_file(
            file_.path(), c10::str("no size of a block: ", block.dump()));
      }
      notes.checksums =
          parse_checksums(texts.at(name).get_ref<const std::string&>());
    }
    return notes;
  }

 private:
  Json table(const Json& metadata, const char* key) const {
    const auto text = metadata.find(key);
    if (text == metadata.end() || !text->is_string()) {
      return nullptr;
    }
    auto table = parsed(file_, text->get_ref<const std::string&>());
    if (!table.is_object()) {
      refuse_file(file_.path(), c10::str(key, " is no JSON object"));
    }
    return table;
  }

  const MappedFile& file_;
  Json sharding_ = nullptr;
  Json checksums_ = nullptr;
};

// Where a weight lies behind the header.
struct Range {
  uint64_t begin;
  uint64_t end;
  std::string name;
};

// One after the other, with nothing between them or behind, as the format has
// it: else the file has been changed, or is not all there.
void check_ranges(
    const MappedFile& file,
    uint64_t bytes,
    std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t at = 0;
  const std::string* last = nullptr;
  for (const auto& range : ranges) {
    if (range.begin < at) {
      refuse_file(
          file.path(),
          c10::str("the weights ", *last, " and ", range.name, " overlap"));
    }
    if (range.begin > at) {
      refuse_file(
          file.path(),
          c10::str("bytes ", at, " to ", range.begin, " are of no weight"));
    }
    at = range.end;
    last = &range.name;
  }
  if (at != bytes) {
    refuse_file(
        file.path(),
        c10::str("its weights have ", at, " bytes, and it has ", bytes));
  }
}

// What the header says of one weight, whatever it is.
struct Described {
  const MappedFile& file;
  const std::string& name;

  void refuse(const std::string& what) const {
    refuse_file(file.path(), c10::str("the weight ", name, " has ", what));
  }
  uint64_t whole(const Json& number) const {
    if (!number.is_number_unsigned()) {
      refuse("a size or an offset that is none: " + number.dump());
    }
    return number.get<uint64_t>();
  }
  WeightInfo info(const Json& about) const {
    WeightInfo info;
    info.name = name;
    info.format = about.at("dtype").get<std::string>();
    for (const auto& item : about.at("shape")) {
      const auto size = whole(item);
      if (!add_size(info.sizes, size)) {
        refuse(c10::str("a size of ", size));
      }
    }
    return info;
  }
};

// {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
Range add_weight(
    WeightFile::Contents& contents,
    const MappedFile& file,
    uint64_t data,
    const std::string& name,
    const Json& about,
    PieceNotes notes) {
  const Described weight{file, name};
  auto info = weight.info(about);
  const auto begin = weight.whole(about.at("data_offsets").at(0));
  const auto end = weight.whole(about.at("data_offsets").at(1));
  const auto* format = safetensors_format(info.format);
  if (format != nullptr) {
    info.dtype = format->dtype;
    const auto bytes = static_cast<uint64_t>(numel(info.sizes) * format->bytes);
    if (end < begin || end - begin != bytes) {
      weight.refuse(c10::str("offsets for other than ", bytes, " bytes"));
    }
  }
  if (begin > file.size() || end < begin) {
    weight.refuse("offsets outside of the file");
  }
  if (notes.offsets && notes.offsets->size() != info.sizes.size()) {
    weight.refuse("not as many offsets as sizes");
  }
  contents.add_piece(
      std::move(info), format, file, data + begin, std::move(notes));
  return {begin, end, name};
}

} // namespace

void read_safetensors(WeightFile::Contents& contents, MappedFilePtr mapped) {
  const auto& file = *contents.files.emplace_back(std::move(mapped));
  const auto text = header_of(file);
  const auto header = parsed(file, text);
  if (!header.is_object()) {
    refuse_file(file.path(), "the header is no JSON object");
  }
  Notes notes(file);
  const auto metadata = header.find("__metadata__");
  if (metadata != header.end() && metadata->is_object()) {
    add_metadata(contents, *metadata);
    notes.read(*metadata);
  }
  const auto data = kLengthBytes + text.size();
  std::vector<Range> ranges;
  for (const auto& [name, about] : header.items()) {
    if (name == "__metadata__") {
      continue;
    }
    try {
      ranges.push_back(
          add_weight(contents, file, data, name, about, notes.of(name)));
    } catch (const Json::exception& error) {
      refuse_file(
          file.path(), c10::str("the weight ", name, ": ", error.what()));
    }
  }
  check_ranges(file, file.size() - data, std::move(ranges));
}

// {"weight_map": {"name": "model-00001-of-00002.safetensors"}}
void read_safetensors_index(
    WeightFile::Contents& contents,
    const MappedFile& file) {
  const auto& path = file.path();
  const auto index =
      parsed(file, {reinterpret_cast<const char*>(file.data()), file.size()});
  const auto names = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || names == index.end() || !names->is_object()) {
    refuse_file(path, "no index: it has no \"weight_map\"");
  }
  std::set<std::string> files;
  for (const auto& [name, of] : names->items()) {
    if (!of.is_string()) {
      refuse_file(path, c10::str("the file of ", name, " is no text"));
    }
    files.insert(of.get<std::string>());
  }
  const auto folder = std::filesystem::path(path).parent_path();
  for (const auto& name : files) {
    read_safetensors(
        contents, std::make_unique<MappedFile>((folder / name).string()));
  }
  for (const auto& [name, of] : names->items()) {
    if (contents.by_name.find(name) == contents.by_name.end()) {
      refuse_file(path, c10::str(name, " is not in ", of.get<std::string>()));
    }
  }
}

void read_safetensors_folder(
    WeightFile::Contents& contents,
    const std::string& folder) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") {
      files.insert(entry.path().string());
    }
  }
  if (files.empty()) {
    refuse_file(folder, "a folder without files of safetensors");
  }
  for (const auto& file : files) {
    read_safetensors(contents, std::make_unique<MappedFile>(file));
  }
}

} // namespace dtensor::detail
