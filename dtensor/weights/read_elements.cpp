// SPDX-License-Identifier: BSD-3-Clause
// Reads elements of a weight, without state per row, because a weight may have
// very many rows.
#include <dtensor/weights/weight_contents_impl.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

namespace dtensor::detail {
namespace {

constexpr int64_t kMostElementsAtOnce = 1 << 20;

// Reinterprets bytes as `dtype`. The last dimension has the bytes of an
// element.
at::Tensor typed(const at::Tensor& bytes, at::ScalarType dtype) {
  return bytes.contiguous().view(dtype).squeeze(-1);
}

// from_blob takes no pointer to const. The bytes are never written.
void* memory_of(const std::byte* data) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
  return const_cast<std::byte*>(data);
}

bool is_aligned(const std::byte* data, at::ScalarType dtype) {
  return reinterpret_cast<uintptr_t>(data) % c10::elementSize(dtype) == 0;
}

// Sizes and intervals to read. Trailing dimensions that are read in full are
// merged.
struct MergedBox {
  Sizes sizes;
  std::vector<Intervals> parts;

  MergedBox(SizesRef all, c10::ArrayRef<Intervals> of)
      : sizes(all.begin(), all.end()),
        parts(of.begin(), of.end()) {
    if (sizes.empty()) {
      sizes.push_back(1);
      parts.push_back({{0, 1}});
    }
    while (sizes.size() > 1 && parts.back() == Intervals{{0, sizes.back()}}) {
      const auto row = sizes.back();
      sizes.pop_back();
      parts.pop_back();
      sizes.back() *= row;
      for (auto& interval : parts.back()) {
        interval = {interval.begin * row, interval.end * row};
      }
    }
  }
};

// Enumerates the numbers of the rows to read, in the order of `parts`. A row is
// the last dimension.
class RowNumbers {
 public:
  explicit RowNumbers(const MergedBox& box)
      : box_(box),
        at_(box.sizes.size() - 1) {
    for (size_t d = 0; d < at_.size(); ++d) {
      begin(d);
    }
  }

  int64_t number() const {
    int64_t row = 0;
    for (size_t d = 0; d < at_.size(); ++d) {
      row = row * box_.sizes[d] + at_[d].index;
    }
    return row;
  }

  /// Moves to the next row. Returns false after the last row.
  bool next() {
    for (size_t d = at_.size(); d-- > 0;) {
      auto& [interval, index] = at_[d];
      const auto& intervals = box_.parts[d];
      if (++index < intervals[interval].end) {
        return true;
      }
      while (++interval < intervals.size()) {
        index = intervals[interval].begin;
        if (intervals[interval].size() > 0) {
          return true;
        }
      }
      begin(d);
    }
    return false;
  }

 private:
  struct Position {
    size_t interval = 0;
    int64_t index = 0;
  };

  // Moves to the first nonempty interval, which must exist.
  void begin(size_t d) {
    size_t first = 0;
    while (box_.parts[d][first].size() == 0) {
      ++first;
    }
    at_[d] = {first, box_.parts[d][first].begin};
  }

  const MergedBox& box_;
  std::vector<Position> at_;
};

// Converts elements of a format, run by run, into a contiguous tensor of any
// dtype on any device.
class ElementSink {
 public:
  ElementSink(const WeightFormat& format, const at::Tensor& out)
      : format_(format),
        out_(out.view({-1})),
        in_place_(out.device().is_cpu() && out.scalar_type() == format.dtype) {
    if (!in_place_) {
      staging_ = at::empty(
          {std::min(out_.numel(), kMostElementsAtOnce)}, format.dtype);
    }
  }

  /// Appends elements [first, first + count) of a weight that begins at `data`.
  void append(const std::byte* data, int64_t first, int64_t count) {
    while (count > 0) {
      if (!in_place_ && filled_ == staging_.numel()) {
        flush();
      }
      const auto room = in_place_ ? count : staging_.numel() - filled_;
      const auto some = std::min({count, room, kMostElementsAtOnce});
      copy(data, first, some);
      first += some;
      count -= some;
      filled_ += some;
    }
  }

  void flush() {
    if (!in_place_ && filled_ > 0) {
      out_.narrow(0, done_, filled_).copy_(staging_.narrow(0, 0, filled_));
      done_ += filled_;
      filled_ = 0;
    }
  }

 private:
  void copy(const std::byte* data, int64_t first, int64_t count) {
    const auto& target = in_place_ ? out_ : staging_;
    const auto item = static_cast<int64_t>(c10::elementSize(format_.dtype));
    auto* to = static_cast<std::byte*>(target.data_ptr()) + filled_ * item;
    const auto bytes = static_cast<size_t>(count * item);
    if (format_.decode == nullptr) {
      std::memcpy(to, data + first * item, bytes);
      return;
    }
    // Decodes all blocks that overlap the run, because only full blocks can be
    // decoded.
    const auto block = first / format_.block;
    const auto end = (first + count + format_.block - 1) / format_.block;
    decoded_.resize(static_cast<size_t>((end - block) * format_.block));
    format_.decode(data + block * format_.bytes, end - block, decoded_.data());
    std::memcpy(to, decoded_.data() + (first - block * format_.block), bytes);
  }

  const WeightFormat& format_;
  at::Tensor out_;
  bool in_place_;
  at::Tensor staging_;
  int64_t filled_ = 0; // elements in `staging_`, or in `out_`
  int64_t done_ = 0;   // elements flushed before those in `staging_`
  std::vector<float> decoded_;
};

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
        contiguous_from_(from.dim()),
        run_(from.element_size()) {
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
  int64_t d = 0;
  while (d + 1 < to.dim() && from.size(d) == 1) {
    ++d;
  }
  const auto* rows = static_cast<const std::byte*>(from.data_ptr());
  const auto row = from.stride(d) * from.element_size();
  const auto step =
      std::max<int64_t>(kCopiedBytes / std::max<int64_t>(row, 1), 1);
  for (int64_t begin = 0; begin < from.size(d); begin += step) {
    const auto count = std::min(step, from.size(d) - begin);
    copy_slice(
        format, from.narrow(d, begin, count), to.narrow(d, begin, count));
    const auto left = piece.data + piece.bytes - rows;
    MappedFile::forget(
        rows, static_cast<size_t>(std::min<int64_t>(count * row, left)));
    rows += count * row;
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
  auto* const data = memory_of(piece.data);
  if (is_aligned(piece.data, format.dtype)) {
    return at::from_blob(data, piece.sizes, format.dtype);
  }
  auto sizes = piece.sizes;
  sizes.push_back(static_cast<int64_t>(c10::elementSize(format.dtype)));
  return at::from_blob(data, sizes, at::kByte);
}

} // namespace

void read_elements(
    const StoredWeight& stored,
    SizesRef sizes,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out) {
  const MergedBox box(sizes, parts);
  ElementSink sink(*stored.format, out);
  RowNumbers rows(box);
  do {
    const auto row = rows.number() * box.sizes.back();
    for (const auto& columns : box.parts.back()) {
      sink.append(stored.data, row + columns.begin, columns.size());
    }
  } while (rows.next());
  sink.flush();
}

void read_strided(
    const StoredWeight& stored,
    SizesRef sizes,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out) {
  const auto dtype = stored.format->dtype;
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  // Unaligned elements are read as bytes. Dtypes that cat() does not support
  // are read as bytes too.
  const bool as_bytes = !is_aligned(stored.data, dtype) ||
      std::ranges::any_of(
          parts, [](const auto& intervals) { return intervals.size() != 1; });
  Sizes all(sizes.begin(), sizes.end());
  Sizes strides = stored.strides;
  if (as_bytes) {
    for (auto& stride : strides) {
      stride *= item;
    }
    all.push_back(item);
    strides.push_back(1);
  }
  auto part = at::from_blob(
      memory_of(stored.data), all, strides, as_bytes ? at::kByte : dtype);
  for (size_t d = 0; d < parts.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    std::vector<at::Tensor> pieces;
    for (const auto& range : parts[d]) {
      pieces.push_back(part.narrow(dim, range.begin, range.size()));
    }
    part = pieces.size() == 1 ? pieces[0] : at::cat(pieces, dim);
  }
  out.copy_(as_bytes ? typed(part, dtype) : part);
}

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
