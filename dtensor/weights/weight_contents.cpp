// SPDX-License-Identifier: BSD-3-Clause
// Checks and combines the results of the readers of formats.
#include <dtensor/weights/weight_contents_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/shortened_impl.h>

#include <algorithm>
#include <set>
#include <utility>

namespace dtensor {
namespace {

using detail::StoredPiece;
using detail::StoredWeight;
using detail::WeightFormat;

// True if elements are contiguous. Dimensions of size 1 may have any stride.
bool is_contiguous(const Sizes& sizes, const Sizes& strides) {
  int64_t next = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != next) {
      return false;
    }
    next *= sizes[d];
  }
  return true;
}

template <class... Values>
[[noreturn]] void refuse_weight(
    const std::string& path,
    const std::string& name,
    detail::TextFormat<sizeof...(Values)> format,
    const Values&... values) {
  const auto why = detail::format_text(format, values...);
  detail::refuse_file(path, "the weight {} {}", detail::shown_name(name), why);
}

// Returns the place of a tensor that begins at `offset` of a file.
StoredWeight place_of(
    const std::string& path,
    const WeightInfo& info,
    const WeightFormat* format,
    const detail::MappedFile& file,
    uint64_t offset,
    const Sizes& strides = {}) {
  uint64_t bytes = 0;
  if (!strides.empty()) {
    bytes = detail::reach_of(info.sizes, strides).value_or(file.size()) *
        static_cast<uint64_t>(format->bytes);
  } else if (format != nullptr) {
    bytes = static_cast<uint64_t>(numel(info.sizes) / format->block) *
        static_cast<uint64_t>(format->bytes);
  }
  if (offset > file.size() || bytes > file.size() - offset) {
    refuse_weight(
        path,
        info.name,
        "spans bytes {} to {}, but the file has {} bytes",
        offset,
        offset + bytes,
        file.size());
  }
  return {file.data() + offset, format, bytes};
}

StoredPiece piece_at(
    const StoredWeight& place,
    const Sizes& sizes,
    const detail::MappedFile& file,
    detail::PieceNotes notes) {
  return {
      notes.offsets.value_or(Sizes(sizes.size(), 0)),
      sizes,
      place.data,
      place.bytes,
      &file,
      std::move(notes.checksums),
      notes.block};
}

int64_t end_of(const StoredPiece& piece, size_t dim) {
  return piece.offsets[dim] + piece.sizes[dim];
}

bool overlap(const StoredPiece& a, const StoredPiece& b) {
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] >= end_of(b, d) || b.offsets[d] >= end_of(a, d)) {
      return false;
    }
  }
  return true;
}

// Returns the dimension with the most distinct offsets of pieces.
size_t dim_of_pieces(const std::vector<StoredPiece>& pieces) {
  size_t best = 0;
  size_t most = 0;
  for (size_t d = 0; d < pieces[0].sizes.size(); ++d) {
    std::set<int64_t> begins;
    for (const auto& piece : pieces) {
      begins.insert(piece.offsets[d]);
    }
    if (begins.size() > most) {
      most = begins.size();
      best = d;
    }
  }
  return best;
}

// Returns true if two nonempty pieces overlap. Sorting along one dimension
// avoids most comparisons.
bool any_overlap(std::vector<StoredPiece> pieces) {
  std::erase_if(pieces, [](const auto& p) { return numel(p.sizes) == 0; });
  if (pieces.empty() || pieces[0].sizes.empty()) {
    return pieces.size() > 1;
  }
  const auto d = dim_of_pieces(pieces);
  std::ranges::sort(pieces, [&](const auto& a, const auto& b) {
    return a.offsets[d] < b.offsets[d];
  });
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t k = i + 1;
         k < pieces.size() && pieces[k].offsets[d] < end_of(pieces[i], d);
         ++k) {
      if (overlap(pieces[i], pieces[k])) {
        return true;
      }
    }
  }
  return false;
}

void join(const std::string& path, WeightInfo& info, StoredWeight& stored) {
  Sizes ends(info.sizes.size(), 0);
  int64_t elements = 0;
  for (const auto& piece : stored.pieces) {
    elements += numel(piece.sizes);
    for (size_t d = 0; d < ends.size(); ++d) {
      ends[d] = std::max(ends[d], end_of(piece, d));
    }
  }
  Sizes sizes;
  for (const auto end : ends) {
    if (!detail::add_size(sizes, static_cast<uint64_t>(end))) {
      refuse_weight(path, info.name, "has the invalid size {}", end);
    }
  }
  info.sizes = sizes;
  if (any_overlap(stored.pieces)) {
    refuse_weight(path, info.name, "has overlapping shards");
  }
  if (elements != numel(sizes)) {
    refuse_weight(
        path,
        info.name,
        "is {}, but its shards hold {} of {} elements: files are missing",
        shape_text(info.dtype, sizes),
        elements,
        numel(sizes));
  }
  if (stored.pieces.size() == 1) {
    stored.in_pieces = false;
  } else {
    stored.data = nullptr;
    stored.bytes = 0;
  }
}

} // namespace

detail::JsonOrigin detail::weight_origin(
    const std::string& path,
    std::string part) {
  return {"open_weights", path, std::move(part), kWeightFileAdvice};
}

bool detail::add_size(Sizes& sizes, uint64_t size) {
  if (sizes.size() >= kMostDims) {
    return false;
  }
  uint64_t remaining = kMostElements;
  for (const auto before : sizes) {
    remaining /= static_cast<uint64_t>(std::max<int64_t>(before, 1));
  }
  if (size > remaining) {
    return false;
  }
  sizes.push_back(static_cast<int64_t>(size));
  return true;
}

const char* detail::why_not_added(const Sizes& sizes) {
  return sizes.size() >= kMostDims
      ? "it has more than 64 dimensions"
      : "with this size it has more than 2^48 elements";
}

std::optional<uint64_t> detail::reach_of(
    const Sizes& sizes,
    const Sizes& strides) {
  uint64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const auto steps = static_cast<uint64_t>(sizes[d]);
    const auto stride = static_cast<uint64_t>(strides[d]);
    if (steps == 0) {
      return 0;
    }
    if (stride > 0 && steps - 1 > (kMostElements - last) / stride) {
      return std::nullopt;
    }
    last += (steps - 1) * stride;
  }
  return last + 1;
}

void WeightFile::Contents::add(
    WeightInfo info,
    const WeightFormat* format,
    const detail::MappedFile& file,
    uint64_t offset,
    const Sizes& strides) {
  const bool is_strided =
      !strides.empty() && !is_contiguous(info.sizes, strides);
  auto place = place_of(
      path, info, format, file, offset, is_strided ? strides : Sizes());
  if (!by_name.emplace(info.name, weights.size()).second) {
    refuse_weight(path, info.name, "appears twice");
  }
  if (is_strided) {
    place.strides = strides;
  }
  stored.push_back(std::move(place));
  weights.push_back(std::move(info));
}

void WeightFile::Contents::add_piece(
    WeightInfo info,
    const WeightFormat* format,
    const detail::MappedFile& file,
    uint64_t offset,
    detail::PieceNotes notes) {
  const bool is_part = notes.offsets.has_value();
  const auto before = by_name.find(info.name);
  if (is_part && format == nullptr && before != by_name.end()) {
    return; // already listed
  }
  if (before == by_name.end() || !is_part ||
      !stored[before->second].in_pieces) {
    const auto sizes = info.sizes;
    add(std::move(info), format, file, offset);
    auto& place = stored.back();
    place.in_pieces = is_part && format != nullptr;
    place.pieces.push_back(piece_at(place, sizes, file, std::move(notes)));
    return;
  }
  const auto& first = weights[before->second];
  if (first.format != info.format || first.sizes.size() != info.sizes.size()) {
    refuse_weight(
        path,
        info.name,
        "has shards of {} with {} and of {} with {}",
        first.format,
        detail::pluralize(first.sizes.size(), "dimension"),
        info.format,
        info.sizes.size());
  }
  const auto place = place_of(file.path(), info, format, file, offset);
  stored[before->second].pieces.push_back(
      piece_at(place, info.sizes, file, std::move(notes)));
}

void WeightFile::Contents::join_pieces() {
  for (size_t i = 0; i < weights.size(); ++i) {
    if (stored[i].in_pieces) {
      join(path, weights[i], stored[i]);
    }
  }
}

void WeightFile::Contents::check_can_be_read(
    const WeightInfo& weight,
    const char* where) const {
  DTENSOR_CHECK_VALUE(
      stored_as(weight).format != nullptr,
      "[{}] \"{}\" in {} is {}, which is not supported. Convert it to F16, "
      "Q8_0, Q4_0, Q4_1, Q4_K or Q6_K.",
      where,
      detail::shortened(weight.name),
      path,
      weight.format);
}

const StoredWeight& WeightFile::Contents::stored_as(
    const WeightInfo& weight) const {
  return stored[static_cast<size_t>(&weight - weights.data())];
}

} // namespace dtensor
