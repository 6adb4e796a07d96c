// SPDX-License-Identifier: BSD-3-Clause
// From pieces to the files that other programs expect of a model.
#include <dtensor/checkpoint/files_impl.h>
#include <dtensor/checkpoint/save_run_impl.h>
#include <dtensor/weights/weight_file.h>

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <filesystem>

namespace dtensor::detail {
namespace {

namespace fs = std::filesystem;

WrittenTensor whole(const WeightFilePtr& file, const WeightInfo& weight) {
  const auto read = [file, weight](int64_t begin, int64_t count) {
    auto sizes = weight.sizes;
    std::vector<Intervals> parts;
    for (size_t d = 0; d < sizes.size(); ++d) {
      parts.push_back(
          {d == 0 ? Interval{begin, begin + count} : Interval{0, sizes[d]}});
    }
    if (!sizes.empty()) {
      sizes[0] = count;
    }
    auto rows = at::empty(sizes, weight.dtype);
    file->read(weight.name, parts, rows);
    return rows;
  };
  return {
      weight.name,
      weight.dtype,
      Sizes(weight.sizes.size(), 0),
      weight.sizes,
      read};
}

// In order, so many to a file as fit, but one at least.
std::vector<std::vector<WrittenTensor>>
dealt_out(const WeightFilePtr& file, int64_t max_file_bytes, int64_t& total) {
  std::vector<std::vector<WrittenTensor>> files;
  int64_t bytes = 0;
  total = 0;
  for (const auto& weight : file->weights()) {
    const auto more = numel(weight.sizes) *
        static_cast<int64_t>(c10::elementSize(weight.dtype));
    if (files.empty() || bytes + more > max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(whole(file, weight));
    bytes += more;
    total += more;
  }
  return files;
}

std::string file_name(size_t file, size_t files) {
  if (files == 1) {
    return "model.safetensors";
  }
  std::array<char, 64> name{};
  std::snprintf(
      name.data(),
      name.size(),
      "model-%05zu-of-%05zu.safetensors",
      file,
      files);
  return name.data();
}

void write_index(
    const std::string& folder,
    const std::vector<std::vector<WrittenTensor>>& files,
    int64_t total) {
  nlohmann::json index = {{"metadata", {{"total_size", total}}}};
  for (size_t i = 0; i < files.size(); ++i) {
    for (const auto& tensor : files[i]) {
      index["weight_map"][tensor.name] = file_name(i + 1, files.size());
    }
  }
  write_small_file(
      (fs::path(folder) / "model.safetensors.index.json").string(),
      index.dump(2) + "\n");
}

} // namespace

FileNotes make_full(const std::string& folder, int64_t max_file_bytes) {
  std::vector<fs::path> pieces;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") {
      pieces.push_back(entry.path());
    }
  }
  FileNotes notes;
  if (pieces.empty()) {
    return notes;
  }
  int64_t total = 0;
  const auto files = dealt_out(open_weights(folder), max_file_bytes, total);
  for (size_t i = 0; i < files.size(); ++i) {
    const auto name = file_name(i + 1, files.size());
    notes[name] =
        write_tensor_file((fs::path(folder) / name).string(), files[i], false);
  }
  if (files.size() > 1) {
    write_index(folder, files, total);
  }
  for (const auto& piece : pieces) {
    fs::remove(piece);
  }
  return notes;
}

} // namespace dtensor::detail
