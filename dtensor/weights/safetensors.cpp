// SPDX-License-Identifier: BSD-3-Clause
// Reader of safetensors: eight bytes with the length of a JSON header, the
// header, and the bytes of all tensors. An index names the file of each tensor.
// Files of torch.distributed.checkpoint and of save_checkpoint hold pieces of
// tensors. Their header has the offsets of each piece under DCP_SHARDING_INFO.
#include <dtensor/weights/weight_contents_impl.h>

#include <dtensor/weights/checksums_impl.h>
#include <dtensor/weights/mapped_file_impl.h>

#include <dtensor/format_text.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr const char* kShardingKey = "DCP_SHARDING_INFO";
constexpr const char* kMetadata = "__metadata__";

// Returns the text between the length and the bytes.
std::string_view header_of(const MappedFile& file) {
  uint64_t length = 0;
  if (file.size() >= kLengthBytes) {
    std::memcpy(&length, file.data(), kLengthBytes);
  }
  if (length == 0 || length > file.size() - kLengthBytes) {
    refuse_file(
        file.path(),
        "invalid header size {} in a file of {} bytes",
        length,
        file.size());
  }
  if (length > kMostJsonBytes) {
    refuse_file(
        file.path(),
        "its header has {} bytes, more than {}",
        length,
        kMostJsonBytes);
  }
  return {reinterpret_cast<const char*>(file.data() + kLengthBytes), length};
}

// Notes about tensors in the header, under __metadata__.
class Notes {
 public:
  Notes(const MappedFile& file, const std::optional<JsonView>& metadata)
      : sharding_(table(file, metadata, kShardingKey)),
        checksums_(table(file, metadata, kChecksumsKey)) {}

  PieceNotes of(const std::string& name) const {
    PieceNotes notes;
    if (sharding_ != nullptr) {
      Sizes offsets;
      const auto about = sharding_->root().at(name).at("saved_offsets");
      for (const auto& offset : about.elements()) {
        offsets.push_back(
            static_cast<int64_t>(offset.unsigned_integer(kMostElements)));
      }
      notes.offsets = std::move(offsets);
    }
    if (checksums_ != nullptr) {
      const auto block = checksums_->root().at("block");
      notes.block = block.unsigned_integer(kMostElements);
      if (notes.block == 0) {
        block.refuse("the block size must be at least 1 byte");
      }
      notes.checksums =
          parse_checksums(checksums_->root().at("xxh3").at(name).text());
    }
    return notes;
  }

 private:
  static std::unique_ptr<JsonDocument> table(
      const MappedFile& file,
      const std::optional<JsonView>& metadata,
      const char* key) {
    const auto text = metadata ? metadata->find(key) : std::nullopt;
    return text ? std::make_unique<JsonDocument>(
                      text->text(),
                      weight_origin(
                          file.path(),
                          detail::format_text("header: {}.{}", kMetadata, key)))
                : nullptr;
  }

  std::unique_ptr<JsonDocument> sharding_;
  std::unique_ptr<JsonDocument> checksums_;
};

void add_metadata(WeightFile::Contents& contents, const JsonView& metadata) {
  for (const auto& [key, value] : metadata.members()) {
    const auto& text = value.text();
    if (key != kShardingKey && key != kChecksumsKey) {
      contents.metadata.insert_or_assign(key, text);
    }
  }
}

// Byte range of a weight behind the header.
struct Range {
  uint64_t begin;
  uint64_t end;
  std::string_view name;
};

// Checks that the weights fill the file without gaps, as the format requires.
// Otherwise the file is modified or truncated.
void check_ranges(
    const MappedFile& file,
    uint64_t bytes,
    std::vector<Range> ranges) {
  std::ranges::sort(ranges, [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t at = 0;
  std::string_view last;
  for (const auto& range : ranges) {
    if (range.begin < at) {
      refuse_file(
          file.path(),
          "the weights {} and {} overlap",
          shown_name(last),
          shown_name(range.name));
    }
    if (range.begin > at) {
      refuse_file(
          file.path(), "bytes {} to {} belong to no weight", at, range.begin);
    }
    at = range.end;
    last = range.name;
  }
  if (at != bytes) {
    refuse_file(
        file.path(),
        "its weights have {} bytes, but its data has {}",
        at,
        bytes);
  }
}

Sizes sizes_of(const JsonView& shape) {
  Sizes sizes;
  for (const auto& item : shape.elements()) {
    if (!add_size(sizes, item.unsigned_integer(kMostElements))) {
      item.refuse(why_not_added(sizes));
    }
  }
  return sizes;
}

// Returns the bytes of all elements in that format.
uint64_t bytes_of(const JsonView& about, const WeightInfo& info) {
  const auto* format = safetensors_format(info.format);
  const auto bits = format == nullptr ? unreadable_safetensors_bits(info.format)
                                      : 8 * format->bytes;
  const auto all = numel(info.sizes) * bits;
  if (bits == 0) {
    about.at("dtype").refuse(
        "safetensors has no dtype " + quoted_json(info.format));
  }
  if (all % 8 != 0) {
    about.refuse("its elements have {} bits, not a multiple of 8", all);
  }
  return static_cast<uint64_t>(all / 8);
}

// Parses {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}.
Range add_weight(
    WeightFile::Contents& contents,
    const MappedFile& file,
    uint64_t data,
    const JsonMember& weight,
    PieceNotes notes) {
  const auto& about = weight.value;
  WeightInfo info;
  info.name = weight.key;
  info.format = about.at("dtype").text();
  info.sizes = sizes_of(about.at("shape"));
  const auto offsets = about.at("data_offsets");
  const auto begin = offsets.at(0).unsigned_integer(file.size());
  const auto end = offsets.at(1).unsigned_integer(file.size());
  const auto bytes = bytes_of(about, info);
  if (offsets.size() != 2 || end < begin || end - begin != bytes) {
    offsets.refuse(
        "expected a range of {} bytes, got {} to {}", bytes, begin, end);
  }
  if (end > file.size() - data) {
    offsets.refuse(
        "it ends at byte {}, beyond the {} bytes after the header",
        end,
        file.size() - data);
  }
  if (notes.offsets && notes.offsets->size() != info.sizes.size()) {
    about.refuse("the numbers of saved_offsets and sizes differ");
  }
  const auto* format = safetensors_format(info.format);
  info.dtype = format == nullptr ? info.dtype : format->dtype;
  contents.add_piece(
      std::move(info), format, file, data + begin, std::move(notes));
  return {begin, end, weight.key};
}

} // namespace

void read_safetensors(WeightFile::Contents& contents, MappedFilePtr mapped) {
  const auto& file = *contents.files.emplace_back(std::move(mapped));
  const auto text = header_of(file);
  const JsonDocument header(text, weight_origin(file.path(), "header"));
  auto metadata = header.root().find(kMetadata);
  if (metadata && metadata->is_null()) {
    metadata.reset();
  }
  if (metadata) {
    add_metadata(contents, *metadata);
  }
  const Notes notes(file, metadata);
  const auto data = kLengthBytes + text.size();
  const auto members = header.root().members();
  std::vector<Range> ranges;
  ranges.reserve(members.size());
  for (const auto& weight : members) {
    if (weight.key != kMetadata) {
      ranges.push_back(
          add_weight(contents, file, data, weight, notes.of(weight.key)));
    }
  }
  check_ranges(file, file.size() - data, std::move(ranges));
}

// Parses {"weight_map": {"name": "model-00001-of-00002.safetensors"}}.
void read_safetensors_index(
    WeightFile::Contents& contents,
    const MappedFile& file) {
  const auto& path = file.path();
  const JsonDocument index(
      {reinterpret_cast<const char*>(file.data()), file.size()},
      weight_origin(path, ""));
  const auto names = index.root().at("weight_map").members();
  std::map<std::string, const MappedFile*> files;
  const auto folder = std::filesystem::path(path).parent_path();
  for (const auto& [name, value] : names) {
    if (!files.try_emplace(value.text(), nullptr).second) {
      continue;
    }
    if (const auto why = problem_of_inner_file(path, value.text());
        !why.empty()) {
      value.refuse(why);
    }
  }
  for (auto& [name, file_of_name] : files) {
    read_safetensors(
        contents, std::make_unique<MappedFile>((folder / name).string()));
    file_of_name = contents.files.back().get();
  }
  for (const auto& [name, value] : names) {
    const auto found = contents.by_name.find(name);
    if (found == contents.by_name.end() ||
        contents.stored[found->second].pieces.at(0).file !=
            files.at(value.text())) {
      value.refuse(
          quoted_json(name) + " is not in " + quoted_json(value.text()));
    }
  }
}

void read_safetensors_folder(
    WeightFile::Contents& contents,
    const std::string& folder) {
  std::set<std::string> files;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator();
       entries.increment(error)) {
    if (entries->path().extension() == ".safetensors") {
      files.insert(entries->path().string());
    }
  }
  if (error) {
    refuse_file(folder, "cannot be listed: " + error.message());
  }
  if (files.empty()) {
    refuse_file(folder, "a folder without safetensors files");
  }
  for (const auto& file : files) {
    read_safetensors(contents, std::make_unique<MappedFile>(file));
  }
}

} // namespace dtensor::detail
