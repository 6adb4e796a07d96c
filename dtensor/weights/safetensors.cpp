// SPDX-License-Identifier: BSD-3-Clause
// safetensors: eight bytes with the length of a header in JSON, the header, and
// the bytes of all tensors. An index names the file of each tensor.
#include <dtensor/weights/weight_contents_impl.h>

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

namespace dtensor::detail {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;

Json header_of(const std::string& path, const MappedFile& file) {
  uint64_t length = 0;
  if (file.size() >= kLengthBytes) {
    std::memcpy(&length, file.data(), kLengthBytes);
  }
  if (length == 0 || length > file.size() - kLengthBytes) {
    refuse_file(
        path,
        c10::str("no header of ", length, " bytes in ", file.size(), " bytes"));
  }
  const auto* text = reinterpret_cast<const char*>(file.data() + kLengthBytes);
  auto header = Json::parse(text, text + length, nullptr, false);
  if (!header.is_object()) {
    refuse_file(path, "the header is no JSON object");
  }
  return header;
}

void add_metadata(WeightFile::Contents& contents, const Json& metadata) {
  for (const auto& [key, value] : metadata.items()) {
    if (value.is_string()) {
      contents.metadata.insert_or_assign(key, value.get<std::string>());
    }
  }
}

// {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
void add_weight(
    WeightFile::Contents& contents,
    const std::string& path,
    uint64_t data,
    const std::string& name,
    const Json& about) {
  const auto refuse = [&](const std::string& what) {
    refuse_file(path, c10::str("the weight ", name, " has ", what));
  };
  const auto& file = *contents.files.back();
  WeightInfo info;
  info.name = name;
  info.format = about.at("dtype").get<std::string>();
  const auto whole = [&](const Json& number) {
    if (!number.is_number_unsigned()) {
      refuse("a size or an offset that is none: " + number.dump());
    }
    return number.get<uint64_t>();
  };
  uint64_t elements = 1;
  for (const auto& item : about.at("shape")) {
    const auto size = whole(item);
    if (size > kMostElements / std::max<uint64_t>(elements, 1)) {
      refuse(c10::str("a size of ", size));
    }
    elements *= size;
    info.sizes.push_back(static_cast<int64_t>(size));
  }
  const auto begin = whole(about.at("data_offsets").at(0));
  const auto end = whole(about.at("data_offsets").at(1));
  const auto* format = safetensors_format(info.format);
  if (format != nullptr) {
    info.dtype = format->dtype;
    const auto bytes = elements * static_cast<uint64_t>(format->bytes);
    if (end < begin || end - begin != bytes) {
      refuse(c10::str("offsets for other than ", bytes, " bytes"));
    }
  }
  if (begin > file.size()) {
    refuse("offsets outside of the file");
  }
  contents.add(std::move(info), format, file, data + begin);
}

} // namespace

void read_safetensors(WeightFile::Contents& contents, const std::string& path) {
  const auto& file =
      *contents.files.emplace_back(std::make_unique<MappedFile>(path));
  const auto header = header_of(path, file);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  for (const auto& [name, about] : header.items()) {
    if (name == "__metadata__") {
      add_metadata(contents, about);
      continue;
    }
    try {
      add_weight(contents, path, kLengthBytes + length, name, about);
    } catch (const Json::exception& error) {
      refuse_file(path, c10::str("the weight ", name, ": ", error.what()));
    }
  }
}

// {"weight_map": {"name": "model-00001-of-00002.safetensors"}}
void read_safetensors_index(
    WeightFile::Contents& contents,
    const std::string& path) {
  const MappedFile file(path);
  const auto* text = reinterpret_cast<const char*>(file.data());
  const auto index = Json::parse(text, text + file.size(), nullptr, false);
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
    read_safetensors(contents, (folder / name).string());
  }
  for (const auto& [name, of] : names->items()) {
    if (contents.by_name.find(name) == contents.by_name.end()) {
      refuse_file(path, c10::str(name, " is not in ", of.get<std::string>()));
    }
  }
}

} // namespace dtensor::detail
