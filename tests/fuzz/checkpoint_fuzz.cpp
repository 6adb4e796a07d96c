// SPDX-License-Identifier: BSD-3-Clause
// Opens any text as checkpoint.json, unchanged and with its correct checksum,
// and as the index of safetensors files. Expects an error that names the file,
// or a checkpoint that loads.
#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/weights/checksums_impl.h>
#include <dtensor/weights/weight_file.h>

#include <nlohmann/json.hpp>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "fuzz.h"
#include "read_all.h"

namespace {

using namespace dtensor;
using namespace nlohmann::literals;

// Returns the header of a file with one weight of four bytes.
std::string header_of_a() {
  const std::string header =
      R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) +
      header;
}

// Returns a folder with that file, which exists until the process ends.
const std::string& folder() {
  // Never destroyed, because exit handlers may use it.
  static const auto* const path = [] {
    std::string name = "/dev/shm/checkpoint_fuzz_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      std::abort();
    }
    std::ofstream(name + "/a", std::ios::binary) << header_of_a() << "1234";
    std::atexit([] {
      std::error_code ignored;
      std::filesystem::remove_all(folder(), ignored);
    });
    return new std::string(name);
  }();
  return *path;
}

void load(const std::string& text) {
  std::ofstream(folder() + "/checkpoint.json", std::ios::binary) << text;
  fuzz::expect_only_errors(folder(), [] {
    const auto opened = detail::open_checkpoint(folder());
    if (opened.file != nullptr) {
      fuzz::read_all(*opened.file);
    }
  });
}

std::string checksum_of(const std::string& bytes) {
  return detail::checksum_text(
      {detail::checksum_of(bytes.data(), bytes.size())});
}

// Returns the text with its own checksum and those of the file "a", or an empty
// text if it is not an object.
std::string with_checksum(const std::string& text) {
  try {
    const detail::JsonDocument document(text, {"fuzz", "input"});
    auto json = document.root().json();
    if (!json.is_object()) {
      return "";
    }
    if (json.contains("/files/a"_json_pointer)) {
      const auto header = header_of_a();
      json["files"]["a"] = {
          {"bytes", header.size() + 4}, {"header", checksum_of(header)}};
    }
    json.erase("checksum");
    json["checksum"] = checksum_of(json.dump());
    return json.dump();
  } catch (const c10::Error&) {
    return "";
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  const std::string text(reinterpret_cast<const char*>(bytes), count);
  load(text);
  if (const auto checked = with_checksum(text); !checked.empty()) {
    load(checked);
  }
  const auto index = folder() + "/model.safetensors.index.json";
  std::ofstream(index, std::ios::binary) << text;
  fuzz::expect_only_errors(
      folder(), [&] { fuzz::read_all(*open_weights(index)); });
  return 0;
}
