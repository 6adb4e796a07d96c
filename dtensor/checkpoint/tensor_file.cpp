// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/tensor_file_impl.h>

#include <dtensor/checkpoint/files_impl.h>
#include <dtensor/weights/checksums_impl.h>
#include <dtensor/weights/weight_format_impl.h>

#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace dtensor::detail {
namespace {

using Json = nlohmann::json;

constexpr int64_t kWrittenBytes = int64_t{8} << 20;

int64_t item_bytes(const WrittenTensor& tensor) {
  return static_cast<int64_t>(c10::elementSize(tensor.dtype));
}

int64_t bytes_of(const WrittenTensor& tensor) {
  return numel(tensor.sizes) * item_bytes(tensor);
}

// Checksums of each tensor's blocks.
using Checksums = std::vector<std::vector<uint64_t>>;

Checksums zeros_for(const std::vector<WrittenTensor>& tensors) {
  Checksums all;
  for (const auto& tensor : tensors) {
    const auto bytes = static_cast<size_t>(bytes_of(tensor));
    all.emplace_back((bytes + kChecksumBlock - 1) / kChecksumBlock, 0);
  }
  return all;
}

// Returns the alignment of the data. In large files the alignment is a page, so
// that rows that fill complete pages never cross a page boundary.
size_t alignment_for(int64_t bytes) {
  return bytes < (int64_t{1} << 20) ? 8 : 4096;
}

// Returns the length of `text`, `text`, and spaces that align the following
// bytes to a multiple of `alignment`.
std::string padded_header(std::string text, size_t alignment) {
  uint64_t length = text.size();
  std::string bytes(sizeof(length), '\0');
  const auto over = (bytes.size() + text.size()) % alignment;
  text.append(over == 0 ? 0 : alignment - over, ' ');
  length = text.size();
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + text;
}

std::string header_of(
    const std::vector<WrittenTensor>& tensors,
    const Checksums& checksums,
    bool in_pieces,
    const std::map<std::string, std::string>& added) {
  auto header = Json::object();
  auto sharding = Json::object();
  auto texts = Json::object();
  int64_t at = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    const auto end = at + bytes_of(tensor);
    header[tensor.name] = {
        {"dtype", dtype_name(tensor.dtype)},
        {"shape",
         std::vector<int64_t>(tensor.sizes.begin(), tensor.sizes.end())},
        {"data_offsets", {at, end}}};
    sharding[tensor.name]["saved_offsets"] =
        std::vector<int64_t>(tensor.offsets.begin(), tensor.offsets.end());
    texts[tensor.name] = checksum_text(checksums[i]);
    at = end;
  }
  auto& metadata = header["__metadata__"];
  metadata["format"] = "pt";
  metadata[kChecksumsKey] =
      Json{{"block", kChecksumBlock}, {"xxh3", texts}}.dump();
  if (in_pieces) {
    metadata["DCP_VERSION"] = "1.0";
    metadata["DCP_SHARDING_INFO"] = sharding.dump();
  }
  for (const auto& [key, text] : added) {
    metadata.emplace(key, text); // does not replace existing keys
  }
  return padded_header(header.dump(), alignment_for(at));
}

std::vector<uint64_t> write_tensor(OutFile& file, const WrittenTensor& tensor) {
  BlockHasher hasher;
  const auto put = [&](const at::Tensor& slice) {
    file.write(slice.data_ptr(), slice.nbytes());
    hasher.add(slice.data_ptr(), slice.nbytes());
  };
  if (tensor.sizes.empty()) {
    put(tensor.rows(0, 1));
    return hasher.take_checksums();
  }
  const auto rows = bytes_of(tensor) == 0 ? 0 : tensor.sizes[0];
  const auto row = rows == 0 ? 1 : bytes_of(tensor) / rows;
  const auto step = std::max<int64_t>(kWrittenBytes / row, 1);
  for (int64_t begin = 0; begin < rows; begin += step) {
    put(tensor.rows(begin, std::min(step, rows - begin)));
  }
  return hasher.take_checksums();
}

} // namespace

std::vector<std::string> names_of(const FileNotes& notes) {
  std::vector<std::string> names;
  for (const auto& item : notes) {
    names.push_back(item.first);
  }
  return names;
}

const char* dtype_name(at::ScalarType dtype) {
  const auto* format = safetensors_format(dtype);
  // Python's safetensors package does not read complex128.
  return format == nullptr || dtype == at::kComplexDouble ? nullptr
                                                          : format->name.data();
}

FileNote write_tensor_file(
    const std::string& path,
    std::vector<WrittenTensor> tensors,
    bool in_pieces,
    const std::map<std::string, std::string>& texts) {
  // Sorting by element size keeps every element aligned to its size.
  std::ranges::sort(tensors, [](const auto& a, const auto& b) {
    return std::pair(-item_bytes(a), a.name) <
        std::pair(-item_bytes(b), b.name);
  });
  auto checksums = zeros_for(tensors);
  OutFile file(path);
  auto header = header_of(tensors, checksums, in_pieces, texts);
  file.write(header.data(), header.size());
  FileNote note{header.size(), 0};
  for (size_t i = 0; i < tensors.size(); ++i) {
    checksums[i] = write_tensor(file, tensors[i]);
    note.bytes += static_cast<uint64_t>(bytes_of(tensors[i]));
  }
  header = header_of(tensors, checksums, in_pieces, texts);
  file.write_at(header.data(), header.size(), 0);
  file.close();
  note.header = checksum_of(header.data(), header.size());
  return note;
}

std::function<at::Tensor(int64_t, int64_t)> rows_of(const at::Tensor& value) {
  return [value](int64_t begin, int64_t count) {
    const auto rows = value.dim() == 0 ? value : value.narrow(0, begin, count);
    if (rows._is_zerotensor()) { // a zero tensor has no storage
      return at::zeros(rows.sizes(), rows.scalar_type());
    }
    // Conjugation and negation may still be lazy here.
    return rows.to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  };
}

} // namespace dtensor::detail
