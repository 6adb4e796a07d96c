// SPDX-License-Identifier: BSD-3-Clause
// Reads elements of a weight in contiguous runs of the file. No state is kept
// per row, because a weight may have very many rows.
#include <dtensor/weights/weight_contents_impl.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

namespace dtensor::detail {
namespace {

constexpr int64_t kMostElementsAtOnce = 1 << 20;

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
  explicit RowNumbers(const MergedBox& box) : box_(box) {
    const auto dims = box.sizes.size() - 1;
    at_.resize(dims);
    for (size_t d = 0; d < dims; ++d) {
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
      auto some = std::min(count, kMostElementsAtOnce);
      if (!in_place_) {
        some = std::min(some, staging_.numel() - filled_);
      }
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
  int64_t filled_ = 0; // elements in `room_`, or in `out_`
  int64_t done_ = 0;   // elements flushed before those in `room_`
  std::vector<float> decoded_;
};

} // namespace

void read_elements(
    const StoredWeight& stored,
    SizesRef sizes,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out) {
  if (out.numel() == 0) {
    return;
  }
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
  const bool as_bytes =
      reinterpret_cast<uintptr_t>(stored.data) % static_cast<size_t>(item) !=
          0 ||
      std::ranges::any_of(
          parts, [](const auto& intervals) { return intervals.size() != 1; });
  // from_blob takes no pointer to const. The bytes are never written.
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
  auto* const data = const_cast<std::byte*>(stored.data);
  Sizes all(sizes.begin(), sizes.end());
  Sizes strides = stored.strides;
  if (as_bytes) {
    for (auto& stride : strides) {
      stride *= item;
    }
    all.push_back(item);
    strides.push_back(1);
  }
  auto part = at::from_blob(data, all, strides, as_bytes ? at::kByte : dtype);
  for (size_t d = 0; d < parts.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    std::vector<at::Tensor> pieces;
    for (const auto& range : parts[d]) {
      pieces.push_back(part.narrow(dim, range.begin, range.size()));
    }
    part = pieces.size() == 1 ? pieces[0] : at::cat(pieces, dim);
  }
  out.copy_(as_bytes ? part.contiguous().view(dtype).squeeze(-1) : part);
}

} // namespace dtensor::detail
