// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/manifest_impl.h>

#include <dtensor/checkpoint/files_impl.h>
#include <dtensor/error.h>
#include <dtensor/weights/checksums_impl.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace dtensor::detail {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "dtensor checkpoint";
constexpr int64_t kVersion = 1;
constexpr const char* kExtra = "extra";
constexpr const char* kExtraTensors = "extra_tensors"; // names

[[noreturn]] void refuse_checkpoint(
    const std::string& path,
    const std::string& why) {
  DTENSOR_CHECK_VALUE(
      false, kLoadCheckpoint, path, " ", why, ". Load an older checkpoint.");
}

// JSON has no infinity.
Json json_of(double value) {
  return std::isfinite(value) ? Json(value)
                              : Json{{"double", std::to_string(value)}};
}
template <class T>
Json json_of(const T& value) {
  return value;
}
Json json_of(const at::Tensor&) {
  return nullptr; // stands in a file of tensors
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

CheckpointExtra extra_of(const Json& all) {
  CheckpointExtra extra;
  for (const auto& [name, value] : all.items()) {
    if (value.is_boolean()) {
      extra[name] = value.get<bool>();
    } else if (value.is_number_integer()) {
      extra[name] = value.get<int64_t>();
    } else if (value.is_number()) {
      extra[name] = value.get<double>();
    } else if (value.is_string()) {
      extra[name] = value.get<std::string>();
    } else {
      extra[name] = std::stod(value.at("double").get<std::string>());
    }
  }
  return extra;
}

std::optional<std::set<std::string>> extra_tensors_of(const Json& manifest) {
  const auto found = manifest.find(kExtraTensors);
  if (found == manifest.end()) {
    return std::nullopt;
  }
  return found->get<std::set<std::string>>();
}

Json json_of_notes(const FileNotes& notes) {
  auto files = Json::object();
  for (const auto& [name, note] : notes) {
    files[name] = {
        {"bytes", note.bytes}, {"header", checksum_text({note.header})}};
  }
  return files;
}

FileNotes notes_of(const Json& files) {
  FileNotes notes;
  for (const auto& [name, note] : files.items()) {
    notes[name] = {
        note.at("bytes").get<uint64_t>(),
        parse_checksums(note.at("header").get<std::string>()).at(0)};
  }
  return notes;
}

std::string checksum_of_json(const Json& json) {
  const auto text = json.dump();
  return checksum_text({checksum_of(text.data(), text.size())});
}

// Of the length and the text that it counts; 0 where they are not whole.
uint64_t checksum_of_header(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t length = 0;
  std::string header(sizeof(length), '\0');
  file.read(header.data(), sizeof(length));
  std::memcpy(&length, header.data(), sizeof(length));
  if (!file || length > std::filesystem::file_size(path)) {
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
        c10::str(
            "has ",
            bytes,
            " bytes, and had ",
            note.bytes,
            " when it was saved"));
  }
  if (checksum_of_header(path) != note.header) {
    refuse_checkpoint(path, "has another header than was saved");
  }
}

Manifest parse_manifest(const std::string& path) {
  auto json = Json::parse(read_small_file(path), nullptr, false);
  try {
    const auto checksum = json.at("checksum").get<std::string>();
    json.erase("checksum");
    if (checksum_of_json(json) == checksum) {
      DTENSOR_CHECK_VALUE(
          json.at("format") == kFormat && json.at("version") == kVersion,
          kLoadCheckpoint,
          path,
          " is of version ",
          json.at("version").dump(),
          ". This library reads version ",
          kVersion,
          ".");
      return {
          json.at("ranks").get<int64_t>(),
          notes_of(json.at("files")),
          extra_of(json.at(kExtra)),
          extra_tensors_of(json),
          checksum};
    }
  } catch (const Json::exception&) {
    // It is not as it was written.
  }
  refuse_checkpoint(path, "is not as it was saved");
}

} // namespace

std::string extra_text(const CheckpointExtra& extra) {
  try {
    return json_of_extra(extra).dump();
  } catch (const Json::exception&) {
    DTENSOR_CHECK_VALUE(
        false,
        kSaveCheckpoint,
        "a text of `extra` is no UTF-8. Save bytes as a tensor.");
  }
}

std::string notes_text(const FileNotes& notes) {
  return json_of_notes(notes).dump();
}

FileNotes parse_notes(const std::string& text) {
  return notes_of(Json::parse(text));
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
  const auto path = std::filesystem::path(folder) / kManifest;
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  auto manifest = parse_manifest(path.string());
  for (const auto& [name, note] : manifest.files) {
    check_file((std::filesystem::path(folder) / name).string(), note);
  }
  return manifest;
}

} // namespace dtensor::detail
