// SPDX-License-Identifier: BSD-3-Clause
// Reading of a local shard. Rows (of the first dimension) are verified or
// copied in steps, and their pages are released. If several ranks hold the same
// local shard, each reads a slice of the rows, and the ranks exchange their
// slices.
//
// One rank verifies each block of bytes, among the ranks that read the row in
// which the block begins. If the tensor is also sharded in other dimensions,
// several ranks read this row and take turns.
#include <dtensor/checkpoint/read_part_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/comm/world.h>
#include <dtensor/error.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/tensor_replacement_impl.h>
#include <dtensor/weights/checksums_impl.h>

#include <ATen/ops/empty_like.h>
#include <dtensor/format_text.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {

/// This rank's share of the work on a tensor.
struct PartReader::Share {
  at::Tensor local;
  std::vector<Intervals> parts; // per dimension
  GroupPtr readers;             // ranks that share the reading; null: none
  // Index and number of the ranks that read the same rows and take turns in
  // verifying.
  int64_t peer = 0;
  int64_t peers = 1;
};

namespace {

constexpr int64_t kReadBytes = int64_t{16} << 20;
// Additional memory while ranks exchange slices.
constexpr int64_t kExchangedBytes = int64_t{4} << 20;
constexpr int64_t kSharedBytes = int64_t{1} << 20;
constexpr int64_t kHeldBytes = int64_t{16} << 20;

// Returns the elements [rows.begin, rows.end) of an ordered list of intervals.
Intervals slice_of(const Intervals& list, const Interval& rows) {
  Intervals slice;
  int64_t at = 0;
  for (const auto& interval : list) {
    const auto begin = std::max(rows.begin - at, int64_t{0});
    const auto end = std::min(rows.end - at, interval.size());
    if (begin < end) {
      slice.push_back({interval.begin + begin, interval.begin + end});
    }
    at += interval.size();
  }
  return slice;
}

// Returns the byte range, relative to the stored shard, of its rows that are in
// the tensor's rows [rows.begin, rows.end).
std::pair<int64_t, int64_t> bytes_of_rows(
    const StoredPiece& piece,
    const Interval& rows) {
  const bool is_number = piece.sizes.empty();
  const auto first = is_number ? 0 : piece.offsets[0];
  const auto count = is_number ? 1 : piece.sizes[0];
  const auto begin = std::clamp<int64_t>(rows.begin - first, 0, count);
  const auto end = std::clamp<int64_t>(rows.end - first, 0, count);
  const auto row = count == 0 ? 0 : static_cast<int64_t>(piece.bytes) / count;
  return {begin * row, end * row};
}

void read_ahead(const std::vector<StoredPiece>& pieces, const Intervals& rows) {
  for (const auto& piece : pieces) {
    for (const auto& interval : rows) {
      const auto [begin, end] = bytes_of_rows(piece, interval);
      MappedFile::read_ahead(
          piece.data + begin, static_cast<size_t>(end - begin));
    }
  }
}

// Returns the ranks with the same local shard as this rank, in the order of the
// mesh.
std::vector<int64_t> ranks_with_my_shard(const Spec& spec) {
  const auto& mesh = spec.mesh();
  const auto& mine = *mesh.get_coordinate();
  std::vector<int64_t> holders;
  for (size_t i = 0; i < mesh.ranks().size(); ++i) {
    const auto theirs = mesh.coordinate_of(static_cast<int64_t>(i));
    bool has_same = true;
    for (size_t m = 0; m < mine.size(); ++m) {
      has_same = has_same &&
          (spec.placements()[m].is_replicate() || theirs[m] == mine[m]);
    }
    if (has_same) {
      holders.push_back(mesh.ranks()[i]);
    }
  }
  return holders;
}

} // namespace

PartReader::PartReader(
    const WeightFile& file,
    GroupPtr group,
    const LoadOptions& options)
    : file_(file),
      group_(std::move(group)),
      verify_(options.verify),
      share_reading_(options.share_reading) {}

GroupPtr PartReader::group_of(const std::vector<int64_t>& ranks) {
  auto& group = groups_[ranks];
  if (group == nullptr) {
    group = new_group(ranks, "checkpoint");
  }
  return group;
}

// Returns the share for a plain tensor, which every rank holds in full.
PartReader::Share PartReader::share_of_plain(const at::Tensor& target) {
  Share share{
      .local = target.detach(), .parts = parts_of(target), .readers = nullptr};
  if (group_ == nullptr || group_->size() == 1) {
    return share;
  }
  if (is_shared(share.local)) {
    share.readers = group_;
  } else {
    share.peer = group_->rank();
    share.peers = group_->size();
  }
  return share;
}

PartReader::Share PartReader::share_of(const at::Tensor& target) {
  if (!is_dtensor(target)) {
    return share_of_plain(target);
  }
  const auto& spec = *spec_of(target);
  const auto& mesh = spec.mesh();
  const auto& mine = *mesh.get_coordinate();
  Share share{
      .local = local_of(target).detach(),
      .parts = parts_of(target),
      .readers = nullptr};
  const auto readers = ranks_with_my_shard(spec);
  const bool shared = is_shared(share.local) && readers.size() > 1;
  if (shared) {
    share.readers = group_of(readers);
  }
  // Mesh dimensions that do not shard rows multiply the readers of a row,
  // except replicas that already share the rows among them.
  for (size_t m = 0; m < mine.size(); ++m) {
    const auto& p = spec.placements()[m];
    if (!p.is_sharded(0) && !(shared && p.is_replicate())) {
      share.peer = share.peer * mesh.shape()[m] + mine[m];
      share.peers *= mesh.shape()[m];
    }
  }
  return share;
}

bool PartReader::is_shared(const at::Tensor& local) const {
  return share_reading_ && local.dim() > 0 &&
      static_cast<int64_t>(local.nbytes()) >= kSharedBytes;
}

void PartReader::verify_block(
    const WeightInfo& weight,
    const StoredPiece& piece,
    int64_t block) {
  const auto size = static_cast<int64_t>(piece.block);
  const auto begin = block * size;
  const auto end = std::min(begin + size, static_cast<int64_t>(piece.bytes));
  const auto number = static_cast<size_t>(block);
  touched_.insert(piece.file);
  touched_bytes_ += end - begin;
  if (number < piece.checksums.size() &&
      checksum_of(piece.data + begin, static_cast<size_t>(end - begin)) ==
          piece.checksums[number]) {
    return;
  }
  const auto first = piece.data - piece.file->data();
  damage_ = detail::format_text(
      "{}: checksum mismatch in bytes {} to {}, of {}",
      piece.file->path(),
      first + begin,
      first + end,
      weight.name);
}

void PartReader::verify(
    const WeightInfo& weight,
    const Intervals& rows,
    const Share& share) {
  for (const auto& piece : file_.contents().stored_as(weight).pieces) {
    const auto size = static_cast<int64_t>(piece.block);
    if (size == 0) {
      continue; // written by another program
    }
    for (const auto& interval : rows) {
      const auto [begin, end] = bytes_of_rows(piece, interval);
      for (auto block = (begin + size - 1) / size;
           block * size < end && damage_.empty();
           ++block) {
        if (block % share.peers == share.peer) {
          verify_block(weight, piece, block);
        }
        if (touched_bytes_ >= kHeldBytes) {
          for (const auto* file : touched_) {
            MappedFile::forget(file->data(), file->size());
          }
          touched_.clear();
          touched_bytes_ = 0;
        }
      }
    }
  }
}

// Calls fn(begin, count, own) for consecutive slices of the local shard's rows.
// `own` is the range of rows that this rank reads.
template <class Fn>
void PartReader::for_each_slice(
    const WeightInfo& weight,
    const Share& share,
    const Fn& fn) {
  const auto& local = share.local;
  const auto rows = local.size(0);
  const auto bytes = static_cast<int64_t>(local.nbytes());
  const auto members = share.readers == nullptr ? 1 : share.readers->size();
  const auto rank = share.readers == nullptr ? 0 : share.readers->rank();
  const auto step_bytes = members > 1 ? kExchangedBytes : kReadBytes;
  const auto step = std::max<int64_t>(
      bytes == 0 ? rows : step_bytes / std::max<int64_t>(bytes / rows, 1),
      members);
  const auto& pieces = file_.contents().stored_as(weight).pieces;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const auto count = std::min(step, rows - begin);
    read_ahead(
        pieces,
        slice_of(
            share.parts[0],
            {begin + count, std::min(begin + count + step, rows)}));
    const auto own = chunk(count, members, rank);
    fn(begin, count, {begin + own.begin, begin + own.end});
  }
}

void PartReader::check(const std::string& name, const at::Tensor& target) {
  if (!verify_ || is_outside_mesh(target)) {
    return;
  }
  const auto& weight = *file_.find(name);
  const auto share = share_of(target);
  if (share.parts.empty()) {
    verify(weight, {{0, 1}}, share);
    return;
  }
  for_each_slice(weight, share, [&](int64_t, int64_t, const Interval& own) {
    verify(weight, slice_of(share.parts[0], own), share);
  });
}

void PartReader::read(const std::string& name, const at::Tensor& target) {
  if (is_outside_mesh(target)) {
    return;
  }
  const auto& weight = *file_.find(name);
  const auto share = share_of(target);
  const auto& local = share.local;
  if (share.parts.empty()) {
    file_.read(name, {}, local);
    return;
  }
  const auto read = [&](const Interval& rows) {
    auto parts = share.parts;
    parts[0] = slice_of(parts[0], rows);
    auto out = local.narrow(0, rows.begin, rows.size());
    if (out.numel() > 0) {
      file_.read(name, parts, out);
    }
    return out;
  };
  for_each_slice(
      weight, share, [&](int64_t begin, int64_t count, const Interval& own) {
        const auto mine = read(own);
        if (share.readers == nullptr) {
          return;
        }
        Sizes counts;
        for (int64_t r = 0; r < share.readers->size(); ++r) {
          counts.push_back(chunk(count, share.readers->size(), r).size());
        }
        local.narrow(0, begin, count)
            .copy_(share.readers->all_gather(
                mine.resolve_conj().resolve_neg().contiguous(), 0, counts));
      });
}

void DuplicateWeights::compare(PartReader& reader) {
  for (const auto& pair : pairs_) {
    const auto read = [&](const std::string& name) {
      const auto value = empty_like_target(pair.target);
      reader.read(name, value);
      return is_dtensor(value) ? local_of(value) : value;
    };
    reader.check(pair.again, pair.target);
    const auto first = read(pair.first);
    if (!have_same_values(first, read(pair.again))) {
      differing_.push_back(detail::format_text(
          "\"{}\" and \"{}\" have different values", pair.first, pair.again));
    }
  }
}

void DuplicateWeights::check() const {
  DTENSOR_CHECK_VALUE(
      differing_.empty(),
      "[load_checkpoint] {}, but are one tensor in the model. Load the one to "
      "keep with load_weights(), leaving the other out of `names`.",
      c10::Join("; ", differing_));
}

at::Tensor empty_like_target(const at::Tensor& target) {
  auto like = at::empty_like(target.detach());
  if (target.is_meta()) {
    allocate(like);
  }
  return like;
}

} // namespace dtensor::detail
