// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/weight_file.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/weights/weight_contents_impl.h>
#include <dtensor/weights/zip_directory_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace dtensor {
namespace {

using detail::StoredWeight;
using detail::WeightFormat;

// The elements `range` of a row that is stored at `row`, to `to`, which has
// the format's dtype.
void copy_plain(
    const WeightFormat& format,
    const std::byte* row,
    const Interval& range,
    std::byte* to) {
  std::memcpy(
      to,
      row + range.begin * format.bytes,
      static_cast<size_t>(range.size() * format.bytes));
}

// The same of quantised ones: whole blocks are decoded.
void copy_decoded(
    const WeightFormat& format,
    const std::byte* row,
    const Interval& range,
    std::vector<float>& room,
    std::byte* to) {
  const auto first = range.begin / format.block;
  const auto blocks = (range.end + format.block - 1) / format.block - first;
  room.resize(static_cast<size_t>(blocks * format.block));
  format.decode(row + first * format.bytes, blocks, room.data());
  std::memcpy(
      to,
      room.data() + (range.begin - first * format.block),
      static_cast<size_t>(range.size()) * sizeof(float));
}

// Rows are what the last dimension holds; their numbers, in the order of
// `parts`.
std::vector<int64_t> rows_at(SizesRef sizes, c10::ArrayRef<Intervals> parts) {
  std::vector<int64_t> rows{0};
  for (size_t d = 0; d + 1 < sizes.size(); ++d) {
    std::vector<int64_t> next;
    next.reserve(rows.size() * static_cast<size_t>(total_size(parts[d])));
    for (const auto before : rows) {
      for (const auto& interval : parts[d]) {
        for (auto i = interval.begin; i < interval.end; ++i) {
          next.push_back(before * sizes[d] + i);
        }
      }
    }
    rows = std::move(next);
  }
  return rows;
}

// The elements `columns` of a row, one after the other; returns their end.
std::byte* copy_row(
    const WeightFormat& format,
    const std::byte* row,
    const Intervals& columns,
    std::vector<float>& room,
    std::byte* to) {
  const auto item = static_cast<int64_t>(c10::elementSize(format.dtype));
  for (const auto& range : columns) {
    if (range.size() == 0) {
      continue;
    }
    if (format.decode == nullptr) {
      copy_plain(format, row, range, to);
    } else {
      copy_decoded(format, row, range, room, to);
    }
    to += range.size() * item;
  }
  return to;
}

// Whether elements of the format's dtype can be put straight into `out`.
bool takes_bytes_of(const at::Tensor& out, const WeightFormat& format) {
  return out.device().is_cpu() && out.scalar_type() == format.dtype &&
      out.is_contiguous();
}

// Reads some rows at a time, so that few pages, and little room for what is
// converted, are held.
void copy_rows(
    const StoredWeight& stored,
    int64_t row_size,
    const std::vector<int64_t>& rows,
    const Intervals& columns,
    const at::Tensor& out) {
  constexpr int64_t kElements = 1 << 20;
  const auto& format = *stored.format;
  const auto row_bytes = row_size / format.block * format.bytes;
  const auto width = total_size(columns);
  const auto all = static_cast<int64_t>(rows.size());
  const auto step =
      std::max<int64_t>(kElements / std::max<int64_t>(width, 1), 1);
  const bool in_place = takes_bytes_of(out, format);
  std::vector<float> room;
  for (int64_t begin = 0; begin < all && width > 0; begin += step) {
    const auto count = std::min(step, all - begin);
    const auto target = out.narrow(0, begin, count);
    const auto some =
        in_place ? target : at::empty({count, width}, format.dtype);
    auto* to = static_cast<std::byte*>(some.data_ptr());
    for (int64_t r = begin; r < begin + count; ++r) {
      const auto* row = stored.data + rows[static_cast<size_t>(r)] * row_bytes;
      to = copy_row(format, row, columns, room, to);
    }
    if (!in_place) {
      target.copy_(some);
    }
  }
}

// The same of a weight that is not contiguous in the file.
void copy_strided(
    const StoredWeight& stored,
    SizesRef sizes,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out) {
  // from_blob takes no pointer to const; nobody writes.
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
  auto* const data = const_cast<std::byte*>(stored.data);
  auto part = at::from_blob(data, sizes, stored.strides, stored.format->dtype);
  for (size_t d = 0; d < parts.size(); ++d) {
    std::vector<at::Tensor> pieces;
    for (const auto& range : parts[d]) {
      pieces.push_back(
          part.narrow(static_cast<int64_t>(d), range.begin, range.size()));
    }
    if (pieces.size() != 1) {
      part = pieces.empty() ? part.narrow(static_cast<int64_t>(d), 0, 0)
                            : at::cat(pieces, static_cast<int64_t>(d));
    } else {
      part = pieces[0];
    }
  }
  out.copy_(part);
}

void check_within(
    const WeightInfo& weight,
    size_t dim,
    const Intervals& intervals) {
  for (const auto& interval : intervals) {
    DTENSOR_CHECK_VALUE(
        0 <= interval.begin && interval.begin <= interval.end &&
            interval.end <= weight.sizes[dim],
        "WeightFile::read",
        "[",
        interval.begin,
        ", ",
        interval.end,
        ") of dim ",
        dim,
        " is outside of ",
        weight.name,
        ", ",
        shape_text(weight.dtype, weight.sizes),
        ". Give intervals within it.");
  }
}

void check_parts(
    const WeightInfo& weight,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out) {
  DTENSOR_CHECK_VALUE(
      parts.size() == weight.sizes.size(),
      "WeightFile::read",
      parts.size(),
      " lists of intervals for ",
      weight.name,
      ", ",
      shape_text(weight.dtype, weight.sizes),
      ". Give one for each dimension.");
  Sizes sizes;
  for (size_t d = 0; d < parts.size(); ++d) {
    check_within(weight, d, parts[d]);
    sizes.push_back(total_size(parts[d]));
  }
  DTENSOR_CHECK_VALUE(
      out.defined() && out.sizes() == at::IntArrayRef(sizes),
      "WeightFile::read",
      "these parts of ",
      weight.name,
      " have the shape ",
      at::IntArrayRef(sizes),
      ", and out has ",
      out.defined() ? c10::str(out.sizes()) : std::string("none"),
      ". Give a tensor of that shape.");
}

bool are_all(SizesRef sizes, c10::ArrayRef<Intervals> parts) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (total_size(parts[d]) != sizes[d]) {
      return false;
    }
  }
  return true;
}

// One checksum is of all bytes, most of which a rank that reads a part does not
// look at.
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
      "WeightFile::read",
      weight.name,
      " in ",
      path,
      " is damaged: its checksum is another one. Copy the file once more.");
}

const WeightInfo& weight_of(const WeightFile& file, std::string_view name) {
  const auto* weight = file.find(name);
  DTENSOR_CHECK_VALUE(
      weight != nullptr,
      "WeightFile::read",
      file.path(),
      " has no weight ",
      name,
      ". weights() lists those that it has.");
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
  if (out.is_conj() || out.is_neg()) { // its memory has other values
    const auto plain = at::empty(out.sizes(), out.options());
    read(name, parts, plain);
    out.copy_(plain);
    return;
  }
  if (stored.in_pieces) {
    detail::read_pieces(stored, parts, out);
    return;
  }
  if (!stored.strides.empty()) {
    copy_strided(stored, weight.sizes, parts, out);
    return;
  }
  const auto rows = rows_at(weight.sizes, parts);
  const bool is_number = weight.sizes.empty();
  const auto columns = is_number ? Intervals{{0, 1}} : parts.back();
  const auto width = total_size(columns);
  const auto count = static_cast<int64_t>(rows.size());
  const bool in_rows = out.is_contiguous() && out.numel() > 0;
  const auto target = in_rows ? out.view({count, width})
                              : at::empty({count, width}, out.options());
  copy_rows(stored, is_number ? 1 : weight.sizes.back(), rows, columns, target);
  if (!in_rows && out.numel() > 0) {
    out.copy_(target.view(out.sizes()));
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

} // namespace dtensor
