// SPDX-License-Identifier: BSD-3-Clause
// Assembly of full tensors from shards, in the files of a model that other
// programs expect. Every rank writes the files assigned to it; rank 0 renames
// all files.
#include <dtensor/checkpoint/save_run_impl.h>

#include <dtensor/checkpoint/files_impl.h>
#include <dtensor/weights/weight_contents_impl.h>

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <unordered_set>

namespace dtensor::detail {
namespace {

namespace fs = std::filesystem;

// Suffix of a file's name while shards are read.
constexpr const char* kUnnamed = ".new";

int64_t bytes_of(const Sizes& sizes, at::ScalarType dtype) {
  return numel(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
}

WrittenTensor full_tensor_of(
    const WeightFilePtr& file,
    const WeightInfo& weight) {
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

// Assigns tensors to files, in order. Each file gets as many as fit, but at
// least one.
std::vector<std::vector<WrittenTensor>> assign_to_files(
    const std::string& folder,
    const FileNotes& pieces,
    int64_t max_file_bytes) {
  const auto file = open_weight_files(folder, names_of(pieces));
  std::vector<std::vector<WrittenTensor>> files;
  int64_t bytes = 0;
  for (const auto& weight : file->weights()) {
    const auto more = bytes_of(weight.sizes, weight.dtype);
    if (files.empty() || bytes + more > max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(full_tensor_of(file, weight));
    bytes += more;
  }
  return files;
}

std::string file_name(size_t file, size_t files) {
  return files == 1 ? "model.safetensors"
                    : "model-" + five_digits(static_cast<int64_t>(file)) +
          "-of-" + five_digits(static_cast<int64_t>(files)) + ".safetensors";
}

using Tied = std::map<std::string, std::string>;

// Returns the additional names of the tensors in a file.
Tied tied_in(const std::vector<WrittenTensor>& tensors, const Tied& all) {
  std::unordered_set<std::string> names;
  for (const auto& tensor : tensors) {
    names.insert(tensor.name);
  }
  Tied found;
  for (const auto& [name, first] : all) {
    if (names.count(first) > 0) {
      found[name] = first;
    }
  }
  return found;
}

void write_index(
    const std::string& folder,
    const std::vector<std::vector<WrittenTensor>>& files,
    const Tied& tied) {
  nlohmann::json index;
  index["metadata"] = tied;
  int64_t total = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    for (const auto& tensor : files[i]) {
      index["weight_map"][tensor.name] = file_name(i + 1, files.size());
      total += bytes_of(tensor.sizes, tensor.dtype);
    }
  }
  index["metadata"]["total_size"] = total;
  write_small_file(
      (fs::path(folder) / "model.safetensors.index.json").string(),
      index.dump(2) + "\n");
}

} // namespace

FileNotes write_full_files(
    const std::string& folder,
    const FileNotes& pieces,
    int64_t max_file_bytes,
    int64_t rank,
    int64_t ranks,
    const std::map<std::string, std::string>& tied) {
  FileNotes notes;
  if (pieces.empty()) {
    return notes;
  }
  const auto files = assign_to_files(folder, pieces, max_file_bytes);
  for (auto i = static_cast<size_t>(rank); i < files.size();
       i += static_cast<size_t>(ranks)) {
    const auto name = file_name(i + 1, files.size());
    notes[name] = write_tensor_file(
        (fs::path(folder) / (name + kUnnamed)).string(),
        files[i],
        /*in_pieces=*/false,
        tied_in(files[i], tied));
  }
  return notes;
}

void rename_full_files(
    const std::string& folder,
    const FileNotes& pieces,
    const FileNotes& full,
    int64_t max_file_bytes,
    const std::map<std::string, std::string>& tied) {
  if (full.size() > 1) {
    write_index(folder, assign_to_files(folder, pieces, max_file_bytes), tied);
  }
  for (const auto& item : pieces) {
    fs::remove(fs::path(folder) / item.first);
  }
  for (const auto& item : full) {
    const auto name = fs::path(folder) / item.first;
    fs::rename(name.string() + kUnnamed, name);
  }
}

} // namespace dtensor::detail
