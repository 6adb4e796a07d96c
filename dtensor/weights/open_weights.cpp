// SPDX-License-Identifier: BSD-3-Clause
// Chooses the reader for a weight file or a folder of them.
#include <dtensor/weights/weight_file.h>

#include <dtensor/weights/weight_contents_impl.h>
#include <dtensor/weights/zip_directory_impl.h>

#include <cstring>
#include <filesystem>
#include <utility>

namespace dtensor {
namespace {

bool is_gguf(const detail::MappedFile& file) {
  return file.size() >= 4 && std::memcmp(file.data(), "GGUF", 4) == 0;
}

// Returns the main file of a folder, or the folder itself if it holds other
// files.
std::string file_of(const std::string& path) {
  const std::filesystem::path folder(path);
  if (!std::filesystem::is_directory(folder)) {
    return path;
  }
  for (const auto* name :
       {"model.safetensors.index.json", "model.safetensors"}) {
    if (std::filesystem::exists(folder / name)) {
      return (folder / name).string();
    }
  }
  return path;
}

void read_file(WeightFile::Contents& contents, const std::string& path) {
  auto file = std::make_unique<detail::MappedFile>(path);
  if (path.ends_with(".json")) {
    detail::read_safetensors_index(contents, *file);
  } else if (is_gguf(*file)) {
    detail::read_gguf(contents, std::move(file));
  } else if (detail::is_zip(*file)) {
    detail::read_pt2(contents, std::move(file));
  } else {
    detail::read_safetensors(contents, std::move(file));
  }
}

} // namespace

WeightFilePtr open_weights(const std::string& path) {
  auto contents = std::make_unique<WeightFile::Contents>();
  contents->path = path;
  const auto file = file_of(path);
  if (std::filesystem::is_directory(file)) {
    detail::read_safetensors_folder(*contents, file);
  } else {
    read_file(*contents, file);
  }
  contents->join_pieces();
  return std::make_shared<const WeightFile>(std::move(contents));
}

WeightFilePtr detail::open_weight_files(
    const std::string& folder,
    const std::vector<std::string>& names) {
  auto contents = std::make_unique<WeightFile::Contents>();
  contents->path = folder;
  for (const auto& name : names) {
    detail::read_safetensors(
        *contents,
        std::make_unique<detail::MappedFile>(
            (std::filesystem::path(folder) / name).string()));
  }
  contents->join_pieces();
  return std::make_shared<const WeightFile>(std::move(contents));
}

} // namespace dtensor
