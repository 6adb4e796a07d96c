// SPDX-License-Identifier: BSD-3-Clause
// Reads a weight that is stored in several files, each with a box of the
// weight.
#include <dtensor/weights/weight_contents_impl.h>

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

namespace dtensor::detail {
namespace {

constexpr int64_t kCopiedBytes = int64_t{4} << 20;

// A range of indices of one dimension that is both in the piece and requested.
struct Overlap {
  int64_t in_piece;
  int64_t in_out;
  int64_t size;
};
using Overlaps = c10::SmallVector<Overlap, 2>;

Overlaps overlaps_of(const StoredPiece& piece, size_t d, const Intervals& of) {
  Overlaps found;
  int64_t at = 0;
  for (const auto& interval : of) {
    const auto begin = std::max(interval.begin, piece.offsets[d]);
    const auto end = std::min(interval.end, piece.offsets[d] + piece.sizes[d]);
    if (begin < end) {
      found.push_back(
          {begin - piece.offsets[d], at + begin - interval.begin, end - begin});
    }
    at += interval.size();
  }
  return found;
}

// Copies elements of one dtype by runs of bytes. LibTorch's copy would use a
// thread pool, which slows down ranks that are threads.
class ByteCopy {
 public:
  ByteCopy(const at::Tensor& from, const at::Tensor& to)
      : from_(from),
        to_(to),
        run_(from.element_size()) {
    contiguous_from_ = from.dim();
    while (contiguous_from_ > 0 && is_dense(from) && is_dense(to)) {
      run_ *= from.size(--contiguous_from_);
    }
  }

  void copy() const {
    copy(
        static_cast<const std::byte*>(from_.data_ptr()),
        static_cast<std::byte*>(to_.data_ptr()),
        0);
  }

 private:
  bool is_dense(const at::Tensor& t) const {
    return t.size(contiguous_from_ - 1) == 1 ||
        t.stride(contiguous_from_ - 1) * t.element_size() == run_;
  }

  void copy(const std::byte* from, std::byte* to, int64_t dim) const {
    if (dim == contiguous_from_) {
      std::memcpy(to, from, static_cast<size_t>(run_));
      return;
    }
    const auto item = from_.element_size();
    for (int64_t i = 0; i < from_.size(dim); ++i) {
      copy(from, to, dim + 1);
      from += from_.stride(dim) * item;
      to += to_.stride(dim) * item;
    }
  }

  const at::Tensor& from_;
  const at::Tensor& to_;
  int64_t contiguous_from_; // dimensions from here on are contiguous in both
  int64_t run_;
};

// Reinterprets bytes as `dtype`. The last dimension has the bytes of an
// element.
at::Tensor typed(const at::Tensor& bytes, at::ScalarType dtype) {
  return bytes.contiguous().view(dtype).squeeze(-1);
}

void copy_slice(
    const WeightFormat& format,
    const at::Tensor& from,
    const at::Tensor& to) {
  const bool is_typed = from.scalar_type() == format.dtype;
  if (is_typed && to.scalar_type() == format.dtype && to.device().is_cpu()) {
    ByteCopy(from, to).copy();
  } else {
    to.copy_(is_typed ? from : typed(from, format.dtype));
  }
}

// Copies a box of the piece to a box of the result. The first dimension with a
// size above 1 is copied in steps of about kCopiedBytes. Unaligned elements are
// passed as bytes.
void copy_box(
    const StoredPiece& piece,
    const WeightFormat& format,
    const at::Tensor& from,
    const at::Tensor& to) {
  if (to.dim() == 0) {
    copy_slice(format, from, to);
    return;
  }
  int64_t d = 0;
  while (d + 1 < to.dim() && from.size(d) == 1) {
    ++d;
  }
  const auto* const data = static_cast<const std::byte*>(from.data_ptr());
  const auto row = from.stride(d) * from.element_size();
  const auto step =
      std::max<int64_t>(kCopiedBytes / std::max<int64_t>(row, 1), 1);
  for (int64_t begin = 0; begin < from.size(d); begin += step) {
    const auto count = std::min(step, from.size(d) - begin);
    copy_slice(
        format, from.narrow(d, begin, count), to.narrow(d, begin, count));
    const auto* const rows = data + begin * row;
    const auto left = piece.data + piece.bytes - rows;
    MappedFile::forget(
        rows, static_cast<size_t>(std::min<int64_t>(count * row, left)));
  }
}

void copy_piece(
    const StoredPiece& piece,
    const WeightFormat& format,
    c10::ArrayRef<Overlaps> overlaps,
    size_t dim,
    const at::Tensor& from,
    const at::Tensor& to) {
  if (dim == overlaps.size()) {
    copy_box(piece, format, from, to);
    return;
  }
  const auto d = static_cast<int64_t>(dim);
  for (const auto& part : overlaps[dim]) {
    copy_piece(
        piece,
        format,
        overlaps,
        dim + 1,
        from.narrow(d, part.in_piece, part.size),
        to.narrow(d, part.in_out, part.size));
  }
}

at::Tensor mapped(const StoredPiece& piece, const WeightFormat& format) {
  // from_blob takes no pointer to const. The bytes are never written.
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
  auto* const data = const_cast<std::byte*>(piece.data);
  const auto item = c10::elementSize(format.dtype);
  if (reinterpret_cast<uintptr_t>(data) % item == 0) {
    return at::from_blob(data, piece.sizes, format.dtype);
  }
  auto sizes = piece.sizes;
  sizes.push_back(static_cast<int64_t>(item));
  return at::from_blob(data, sizes, at::kByte);
}

} // namespace

void read_pieces(
    const StoredWeight& stored,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out) {
  for (const auto& piece : stored.pieces) {
    if (piece.bytes == 0) {
      continue;
    }
    c10::SmallVector<Overlaps, 5> overlaps;
    for (size_t d = 0; d < parts.size(); ++d) {
      overlaps.push_back(overlaps_of(piece, d, parts[d]));
    }
    const auto& format = *stored.format;
    copy_piece(piece, format, overlaps, 0, mapped(piece, format), out);
  }
}

} // namespace dtensor::detail
