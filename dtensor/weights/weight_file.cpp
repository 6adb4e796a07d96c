// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/weight_file.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/shortened_impl.h>
#include <dtensor/weights/pt2_archive_impl.h>
#include <dtensor/weights/weight_contents_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <cstring>
#include <filesystem>
#include <utility>

namespace dtensor {
namespace {

using detail::StoredWeight;

void check_within(
    const WeightInfo& weight,
    size_t dim,
    const Intervals& intervals) {
  for (const auto& interval : intervals) {
    DTENSOR_CHECK_VALUE(
        0 <= interval.begin && interval.begin <= interval.end &&
            interval.end <= weight.sizes[dim],
        "[WeightFile::read] [{}, {}) of dim {} is outside of \"{}\", {}. Pass "
        "intervals within it.",
        interval.begin,
        interval.end,
        dim,
        detail::shortened(weight.name),
        shape_text(weight.dtype, weight.sizes));
  }
}

void check_parts(
    const WeightInfo& weight,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out) {
  DTENSOR_CHECK_VALUE(
      parts.size() == weight.sizes.size(),
      "[WeightFile::read] got intervals for {} of \"{}\", {}. Pass a list of "
      "them for each dimension.",
      detail::pluralize(parts.size(), "dimension"),
      detail::shortened(weight.name),
      shape_text(weight.dtype, weight.sizes));
  Sizes sizes;
  for (size_t d = 0; d < parts.size(); ++d) {
    check_within(weight, d, parts[d]);
    sizes.push_back(total_size(parts[d]));
  }
  DTENSOR_CHECK_VALUE(
      out.defined() && out.sizes() == at::IntArrayRef(sizes),
      "[WeightFile::read] these intervals of \"{}\" have shape {}, but out has "
      "{}. Pass a tensor of that shape.",
      detail::shortened(weight.name),
      at::IntArrayRef(sizes),
      out.defined() ? c10::str(out.sizes()) : std::string("none"));
}

bool are_all(SizesRef sizes, c10::ArrayRef<Intervals> parts) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (total_size(parts[d]) != sizes[d]) {
      return false;
    }
  }
  return true;
}

// Checks the CRC-32 of all bytes if the full weight is read. A rank that reads
// a shard does not read most of the bytes, so it cannot check them.
void check_bytes(
    const std::string& path,
    const WeightInfo& weight,
    const StoredWeight& stored,
    c10::ArrayRef<Intervals> parts) {
  if (!stored.checksum || !are_all(weight.sizes, parts)) {
    return;
  }
  const auto& [crc32, bytes] = *stored.checksum;
  DTENSOR_CHECK_VALUE(
      detail::crc32_of(stored.data, bytes) == crc32,
      "[WeightFile::read] \"{}\" in {} is damaged: wrong checksum. Copy the "
      "file again.",
      detail::shortened(weight.name),
      path);
}

const WeightInfo& weight_of(const WeightFile& file, std::string_view name) {
  const auto* weight = file.find(name);
  DTENSOR_CHECK_VALUE(
      weight != nullptr,
      "[WeightFile::read] {} has no weight \"{}\". weights() lists its names.",
      file.path(),
      detail::shortened(name));
  return *weight;
}

} // namespace

WeightFile::WeightFile(std::unique_ptr<Contents> contents)
    : contents_(std::move(contents)) {}
WeightFile::~WeightFile() = default;

const std::string& WeightFile::path() const {
  return contents_->path;
}

const std::vector<WeightInfo>& WeightFile::weights() const {
  return contents_->weights;
}

const WeightFile::Contents& WeightFile::contents() const {
  return *contents_;
}

const WeightInfo* WeightFile::find(std::string_view name) const {
  const auto found = contents_->by_name.find(name);
  return found == contents_->by_name.end() ? nullptr
                                           : &contents_->weights[found->second];
}

bool WeightFile::is_same(std::string_view name, std::string_view other) const {
  const auto& a = contents_->stored_as(weight_of(*this, name));
  const auto& b = contents_->stored_as(weight_of(*this, other));
  return a == b &&
      weight_of(*this, name).sizes == weight_of(*this, other).sizes;
}

const std::map<std::string, WeightMetadata>& WeightFile::metadata() const {
  return contents_->metadata;
}

void WeightFile::read(
    std::string_view name,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out) const {
  const auto& weight = weight_of(*this, name);
  const auto& stored = contents_->stored_as(weight);
  contents_->check_can_be_read(weight, "WeightFile::read");
  check_parts(weight, parts, out);
  detail::check_can_be_filled("out", out, "WeightFile::read");
  check_bytes(path(), weight, stored, parts);
  const c10::NoGradGuard no_grad;
  if (out.is_conj() || out.is_neg()) { // its memory holds different values
    const auto plain = at::empty(out.sizes(), out.options());
    read(name, parts, plain);
    out.copy_(plain);
    return;
  }
  if (stored.in_pieces) {
    detail::read_pieces(stored, parts, out);
    return;
  }
  if (out.numel() == 0) {
    return;
  }
  if (!stored.strides.empty()) {
    detail::read_strided(stored, weight.sizes, parts, out);
    return;
  }
  const auto target =
      out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  detail::read_elements(stored, weight.sizes, parts, target);
  if (!target.is_same(out)) {
    out.copy_(target);
  }
  detail::MappedFile::forget(stored.data, stored.bytes);
}

at::Tensor WeightFile::read(std::string_view name) const {
  const auto& weight = weight_of(*this, name);
  std::vector<Intervals> parts;
  for (const auto size : weight.sizes) {
    parts.push_back({{0, size}});
  }
  auto out = at::empty(weight.sizes, at::TensorOptions(weight.dtype));
  read(name, parts, out);
  return out;
}

namespace {

// Chooses the reader for a weight file or a folder of them.

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
