// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/manifest_impl.h>

#include <dtensor/checkpoint/files_impl.h>
#include <dtensor/checkpoint/saved_tensors_impl.h>
#include <dtensor/error.h>
#include <dtensor/weights/checksums_impl.h>
#include <dtensor/weights/mapped_file_impl.h>
#include <dtensor/weights/weight_contents_impl.h>

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <string_view>
#include <system_error>
#include <vector>

namespace dtensor::detail {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "dtensor checkpoint";
constexpr int64_t kVersion = 1;
constexpr const char* kExtra = "extra";
constexpr const char* kExtraTensors = "extra_tensors"; // array of names
constexpr const char* kTied = "tied"; // absent if no tensor has two names

[[noreturn]] void refuse_checkpoint(
    const std::string& path,
    const std::string& why) {
  DTENSOR_THROW_VALUE(
      "[load_checkpoint] {} {}. Load an older checkpoint.", path, why);
}

// JSON has no infinity or NaN.
Json json_of(double value) {
  return std::isfinite(value) ? Json(value)
                              : Json{{"double", std::to_string(value)}};
}
template <class T>
Json json_of(const T& value) {
  return value;
}
Json json_of(const at::Tensor&) {
  return nullptr; // saved in a tensor file
}

Json json_of_extra(const CheckpointExtra& extra) {
  auto values = Json::object();
  auto tensors = Json::array();
  for (const auto& [name, value] : extra) {
    auto item = std::visit([](const auto& v) { return json_of(v); }, value);
    if (item.is_null()) {
      tensors.push_back(name);
    } else {
      values[name] = std::move(item);
    }
  }
  return {{kExtra, std::move(values)}, {kExtraTensors, std::move(tensors)}};
}

// Parses {"double": "inf"}, which json_of() writes for numbers that JSON does
// not support.
double unusual_number(const JsonView& value) {
  constexpr auto kInfinity = std::numeric_limits<double>::infinity();
  constexpr auto kNaN = std::numeric_limits<double>::quiet_NaN();
  const auto text = value.at("double");
  const std::map<std::string, double> words = {
      {"inf", kInfinity}, {"-inf", -kInfinity}, {"nan", kNaN}, {"-nan", kNaN}};
  const auto found = words.find(text.text());
  if (found == words.end()) {
    text.refuse("expected inf, -inf or nan, got " + quoted_json(text.text()));
  }
  return found->second;
}

CheckpointExtra extra_of(const JsonView& all) {
  CheckpointExtra extra;
  for (const auto& [name, value] : all.members()) {
    if (value.is_boolean()) {
      extra[name] = value.boolean();
    } else if (value.is_integer()) {
      extra[name] = value.integer();
    } else if (value.is_number()) {
      extra[name] = value.number();
    } else if (value.is_text()) {
      extra[name] = value.text();
    } else {
      extra[name] = unusual_number(value);
    }
  }
  return extra;
}

std::optional<std::set<std::string>> extra_tensors_of(
    const JsonView& manifest) {
  const auto found = manifest.find(kExtraTensors);
  if (!found) {
    return std::nullopt;
  }
  std::set<std::string> names;
  for (const auto& name : found->elements()) {
    names.insert(name.text());
  }
  return names;
}

std::map<std::string, std::string> tied_of(const JsonView& manifest) {
  std::map<std::string, std::string> tied;
  if (const auto found = manifest.find(kTied)) {
    for (const auto& [name, first] : found->members()) {
      tied[name] = first.text();
    }
  }
  return tied;
}

Json json_of_notes(const FileNotes& notes) {
  auto files = Json::object();
  for (const auto& [name, note] : notes) {
    files[name] = {
        {"bytes", note.bytes}, {"header", checksum_text({note.header})}};
  }
  return files;
}

std::string checksum_of_json(const Json& json) {
  const auto text = json.dump();
  return checksum_text({checksum_of(text.data(), text.size())});
}

// Returns the checksum of the header's length and text; 0 if the header is
// incomplete or longer than any that can be read.
uint64_t checksum_of_header(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t length = 0;
  std::string header(sizeof(length), '\0');
  file.read(header.data(), sizeof(length));
  std::memcpy(&length, header.data(), sizeof(length));
  if (!file || length > kMostJsonBytes ||
      length > std::filesystem::file_size(path)) {
    return 0;
  }
  header.resize(sizeof(length) + length);
  file.read(
      header.data() + sizeof(length), static_cast<std::streamsize>(length));
  return file ? checksum_of(header.data(), header.size()) : 0;
}

void check_file(const std::string& path, const FileNote& note) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) {
    refuse_checkpoint(path, "cannot be read: " + error.message());
  }
  if (bytes != note.bytes) {
    refuse_checkpoint(
        path,
        detail::format_text(
            "has {} bytes, but had {} when it was saved", bytes, note.bytes));
  }
  if (checksum_of_header(path) != note.header) {
    refuse_checkpoint(path, "has a different header than was saved");
  }
}

// Reads checkpoint.json and verifies its checksum.
std::unique_ptr<JsonDocument> read_document(const std::string& path) {
  std::string why_not;
  const auto text = read_small_file(path, &why_not);
  if (!why_not.empty()) {
    refuse_checkpoint(path, "cannot be read: " + why_not);
  }
  auto document = std::make_unique<JsonDocument>(
      text, JsonOrigin{kLoadCheckpoint, path, "", "Load an older checkpoint"});
  const auto root = document->root();
  const auto& checksum = root.at("checksum").text();
  auto without = root.json();
  without.erase("checksum");
  if (checksum_of_json(without) != checksum) {
    refuse_checkpoint(path, "was modified: its checksum does not match");
  }
  if (root.at("format").text() != kFormat) {
    root.at("format").refuse(c10::str("expected ", quoted_json(kFormat)));
  }
  return document;
}

Manifest parse_manifest(const std::string& path) {
  const auto document = read_document(path);
  const auto root = document->root();
  const auto version = root.at("version").integer();
  DTENSOR_CHECK_VALUE(
      version == kVersion,
      "[load_checkpoint] {} has version {}. This library reads version {}.",
      path,
      version,
      kVersion);
  return {
      root.at("ranks").integer(1),
      notes_of(root.at("files"), path),
      extra_of(root.at(kExtra)),
      extra_tensors_of(root),
      tied_of(root),
      root.at("checksum").text()};
}

std::string manifest_path(const std::string& folder) {
  return (std::filesystem::path(folder) / kManifest).string();
}

} // namespace

std::string extra_text(
    const CheckpointExtra& extra,
    const std::map<std::string, std::string>& tied) {
  try {
    auto json = json_of_extra(extra);
    if (!tied.empty()) {
      json[kTied] = tied;
    }
    return json.dump();
  } catch (const Json::exception&) {
    DTENSOR_THROW_VALUE(
        "[save_checkpoint] a string in `extra` is not valid UTF-8. Save bytes "
        "as a tensor.");
  }
}

std::string notes_text(const FileNotes& notes) {
  return json_of_notes(notes).dump();
}

FileNotes notes_of(const JsonView& files, const std::string& list) {
  FileNotes notes;
  for (const auto& [name, note] : files.members()) {
    if (const auto why = problem_of_inner_file(list, name); !why.empty()) {
      note.refuse(why);
    }
    const auto header = note.at("header");
    const auto checksums = parse_checksums(header.text());
    if (checksums.size() != 1) {
      header.refuse("expected a checksum of 16 hexadecimal digits");
    }
    notes[name] = {note.at("bytes").unsigned_integer(), checksums[0]};
  }
  return notes;
}

std::string
manifest_text(int64_t ranks, const std::string& extra, const FileNotes& files) {
  Json json = {
      {"format", kFormat},
      {"version", kVersion},
      {"ranks", ranks},
      {"files", json_of_notes(files)}};
  json.update(Json::parse(extra));
  json["checksum"] = checksum_of_json(json);
  return json.dump(2) + "\n";
}

std::optional<Manifest> read_manifest(const std::string& folder) {
  const auto path = manifest_path(folder);
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  auto manifest = parse_manifest(path);
  for (const auto& [name, note] : manifest.files) {
    check_file((std::filesystem::path(folder) / name).string(), note);
  }
  return manifest;
}

bool has_manifest(const std::string& folder) {
  return read_document(manifest_path(folder)) != nullptr;
}

const WeightInfo* OpenedCheckpoint::find(const std::string& name) const {
  return file == nullptr ? nullptr : file->find(name);
}

std::string OpenedCheckpoint::stored_name(const std::string& name) const {
  if (find(name) != nullptr || file == nullptr) {
    return name;
  }
  if (manifest) {
    const auto found = manifest->tied.find(name);
    if (found != manifest->tied.end() && find(found->second) != nullptr) {
      return found->second;
    }
  }
  return detail::stored_name(*file, name);
}

bool OpenedCheckpoint::is_non_model_state(const std::string& name) const {
  const std::string optimizer = kOptimizerPrefix;
  if (name.starts_with(optimizer + "state.") ||
      name.starts_with(optimizer + "param_groups.")) {
    return true;
  }
  if (!manifest || !name.starts_with(kExtraPrefix)) {
    return false;
  }
  const auto key = name.substr(std::string_view(kExtraPrefix).size());
  const auto& recorded = manifest->extra_tensors;
  return !recorded || recorded->count(key) > 0;
}

OpenedCheckpoint open_checkpoint(const std::string& path) {
  OpenedCheckpoint opened;
  opened.manifest = read_manifest(path);
  if (!opened.manifest) {
    opened.file = open_weights(path);
    return opened;
  }
  if (const auto& files = opened.manifest->files; !files.empty()) {
    opened.file = open_weight_files(path, names_of(files));
  }
  return opened;
}

} // namespace dtensor::detail
