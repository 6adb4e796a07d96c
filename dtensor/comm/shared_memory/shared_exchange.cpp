// SPDX-License-Identifier: BSD-3-Clause
// all_gather and all_to_all.
//
// In an all_gather, every member publishes its tensor and copies those of all
// members. If all results are in arenas, a member writes a long tensor directly
// into the results of all members instead.
//
// In an all_to_all, every member sends data to every other member.
// Only the two members of a transfer have its size. All members therefore first
// publish a table of the sizes that they send and expect. A member sends its
// data along with the table if all of the data fit behind the table.
#include <dtensor/comm/shared_memory/shared_backend_impl.h>

#include <c10/util/accumulate.h>
#include <dtensor/comm/backend/decompose_impl.h>
#include <dtensor/comm/group/group_checks_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/shared_memory/shared_arena_impl.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Size from which one copy less is worth one more stage.
constexpr int64_t kLongBytes = 64 << 10;

// Table of one member, in the buffer of its notice.
class Table {
 public:
  Table(std::byte* buffer, int64_t members)
      : numbers_(reinterpret_cast<int64_t*>(buffer)),
        members_(members) {}

  int64_t& sent(int64_t to) const {
    return numbers_[to];
  }
  int64_t& expected(int64_t from) const {
    return numbers_[members_ + from];
  }
  std::byte* parts() const {
    return reinterpret_cast<std::byte*>(numbers_ + 2 * members_);
  }
  /// Returns the offset of the data for `member` behind the table, if all data
  /// fits there.
  int64_t offset_of(int64_t member) const {
    int64_t offset = 0;
    for (int64_t to = 0; to < member; ++to) {
      offset += sent(to);
    }
    return offset;
  }
  /// Returns false if another process has written an impossible size.
  bool is_sound() const {
    return std::all_of(numbers_, numbers_ + 2 * members_, [](int64_t bytes) {
      return bytes >= 0 && bytes <= (int64_t{1} << 52);
    });
  }
  bool has_parts() const {
    const auto capacity =
        kNoticeBytes - 2 * members_ * static_cast<int64_t>(sizeof(int64_t));
    return offset_of(members_) <= capacity;
  }
  int64_t longest() const {
    return *std::max_element(numbers_, numbers_ + members_);
  }

 private:
  int64_t* numbers_;
  int64_t members_;
};

// Writes the table, and the data if it fits.
void fill(
    const Table& table,
    const std::vector<Source>& sources,
    const std::vector<Target>& targets) {
  for (size_t member = 0; member < sources.size(); ++member) {
    table.sent(static_cast<int64_t>(member)) = sources[member].bytes();
    table.expected(static_cast<int64_t>(member)) = targets[member].bytes();
  }
  std::byte* place = table.parts();
  for (size_t to = 0; table.has_parts() && to < sources.size(); ++to) {
    copy(sources[to], {0, sources[to].bytes()}, place);
    place += sources[to].bytes();
  }
}

// Returns true if every member expects exactly the sizes that are sent to it.
bool fit(const std::vector<Table>& tables) {
  const auto members = static_cast<int64_t>(tables.size());
  for (int64_t from = 0; from < members; ++from) {
    if (!tables[static_cast<size_t>(from)].is_sound()) {
      return false;
    }
    for (int64_t to = 0; to < members; ++to) {
      if (tables[static_cast<size_t>(from)].sent(to) !=
          tables[static_cast<size_t>(to)].expected(from)) {
        return false;
      }
    }
  }
  return true;
}

} // namespace

at::Tensor SharedBackend::all_gather(const Collective& c) {
  const at::Tensor& input = c.input();
  return collective(c.kind, [&] {
    const Sizes known = known_sizes(c);
    const int64_t total = c10::sum_integers(known);
    check_gathered_size(c, label(), total);
    const Sizes sizes = resized(input.sizes(), c.dim, total);
    const bool is_long = bytes_of(sizes, input.dtype().itemsize()) >=
        static_cast<size_t>(kLongBytes * size());
    const at::Tensor shown =
        is_long ? results_->empty(sizes, input.scalar_type()) : at::Tensor();
    at::Tensor out =
        shown.defined() ? shown : empty_result(sizes, input.options());
    SharedSignature signature = sign(c.kind, input.scalar_type(), known);
    signature.dim = static_cast<uint8_t>(c.dim);
    signature.sizes_hash ^= sign(c.kind, input.scalar_type(), sizes).sizes_hash;
    signature.numel = out.numel();
    const Targets targets = split_rows<std::byte>(out, c.dim, known);
    if (!is_long ||
        !gather_to_all(signature, all_of(input), targets, shown, c)) {
      gather_rows(signature, all_of(input), targets, c);
    }
    return out;
  });
}

// Gathers the members' sizes in one stage, without a tensor.
Sizes SharedBackend::known_sizes(const Collective& c) {
  if (!c.sizes.empty()) {
    return c.sizes;
  }
  const int64_t mine = c.input().size(c.dim);
  SharedSignature signature = sign(CollectiveKind::kAllGather, at::kLong, {});
  signature.numel = -1; // unique to this call
  std::memcpy(channel_->buffer(Buffer::kNotice, rank()), &mine, sizeof(mine));
  post(0, signature);
  meet(0, c);
  Sizes sizes;
  for (int64_t member = 0; member < size(); ++member) {
    int64_t theirs = 0;
    std::memcpy(
        &theirs, channel_->buffer(Buffer::kNotice, member), sizeof(theirs));
    sizes.push_back(theirs);
  }
  channel_->next();
  check_remote_sizes(c.name(), members(), sizes);
  return sizes;
}

bool SharedBackend::gather_to_all(
    const SharedSignature& signature,
    const Source& mine,
    const Targets& targets,
    const at::Tensor& shown,
    const Collective& c) {
  PeerResults results(*channel_);
  results.show(*results_, shown);
  post(0, signature);
  meet(0, c);
  results.find(signature.numel * c.input().element_size());
  channel_->next();
  if (!results.all_in_arenas()) {
    return false;
  }
  const Target& own = targets[static_cast<size_t>(rank())];
  const std::byte* const begin = results.of(rank());
  for (int64_t member = 0; member < size(); ++member) {
    Target theirs = own;
    theirs.data = results.of(member) + (own.data - begin);
    copy(mine, theirs);
  }
  channel_->post();
  channel_->meet();
  channel_->next();
  return true;
}

void SharedBackend::gather_rows(
    const SharedSignature& signature,
    const Source& mine,
    const Targets& targets,
    const Collective& c) {
  const int64_t longest = longest_of(targets);
  const Buffer buffer =
      longest <= kNoticeBytes ? Buffer::kNotice : Buffer::kBlock;
  const int64_t step = channel_->bytes(buffer);
  for (int64_t at = 0; at == 0 || at < longest; at += step) {
    const Interval range = piece(mine, at, step);
    copy(mine, range, channel_->buffer(buffer, rank()));
    post(at, signature);
    meet(at, c);
    for (int64_t member = 0; member < size(); ++member) {
      const Target& target = targets[static_cast<size_t>(member)];
      copy(channel_->buffer(buffer, member), target, piece(target, at, step));
    }
    channel_->next();
  }
}

void SharedBackend::exchange_rows(
    const SharedSignature& signature,
    const Sources& sources,
    const Targets& targets,
    const Collective& c) {
  std::vector<Table> tables;
  for (int64_t member = 0; member < size(); ++member) {
    tables.emplace_back(channel_->buffer(Buffer::kNotice, member), size());
  }
  const auto me = static_cast<size_t>(rank());
  const Table& mine = tables[me];
  fill(mine, sources, targets);
  post(0, signature);
  copy(sources[me], targets[me]); // overlaps with the others' arrival
  channel_->meet();
  if (!channel_->agreed() || !fit(tables)) {
    disagree(c);
  }
  // The tables are valid only until the next stage; the code below copies the
  // values that later stages need.
  std::vector<bool> is_done;
  int64_t longest = 0;
  for (size_t from = 0; from < tables.size(); ++from) {
    const Table& theirs = tables[from];
    is_done.push_back(theirs.has_parts() || from == me);
    if (theirs.has_parts()) {
      copy(
          theirs.parts() + theirs.offset_of(rank()),
          targets[from],
          {0, targets[from].bytes()});
    } else {
      longest = std::max(longest, theirs.longest());
    }
  }
  const bool sends = !mine.has_parts();
  channel_->next();
  exchange_blocks(sends ? sources : Sources(), targets, is_done, longest);
}

void SharedBackend::exchange_blocks(
    const Sources& sources,
    const Targets& targets,
    const std::vector<bool>& is_done,
    int64_t longest) {
  const int64_t step = lane(Buffer::kBlock);
  const auto me = static_cast<size_t>(rank());
  for (int64_t at = 0; at < longest; at += step) {
    for (size_t to = 0; to < sources.size(); ++to) {
      if (to != me) {
        copy(
            sources[to],
            piece(sources[to], at, step),
            lane_of(Buffer::kBlock, rank(), static_cast<int64_t>(to)));
      }
    }
    channel_->post();
    channel_->meet();
    for (size_t from = 0; from < targets.size(); ++from) {
      if (!is_done[from]) {
        copy(
            lane_of(Buffer::kBlock, static_cast<int64_t>(from), rank()),
            targets[from],
            piece(targets[from], at, step));
      }
    }
    channel_->next();
  }
}

at::Tensor SharedBackend::exchange_buffer(const Collective& c) {
  const at::Tensor& input = c.input();
  return collective(c.kind, [&] {
    at::Tensor out =
        empty_result({c10::sum_integers(c.received)}, input.options());
    exchange_rows(
        sign(c.kind, input.scalar_type(), {}),
        split_rows<const std::byte>(input, 0, c.sizes),
        split_rows<std::byte>(out, 0, c.received),
        c);
    return out;
  });
}

std::vector<at::Tensor> SharedBackend::all_to_all(Collective& c) {
  if (c.shapes.empty()) {
    c.shapes = exchange_shapes(
        c.name(),
        *this,
        [this](Collective&& primitive) { return submit(std::move(primitive)); },
        c.inputs);
  }
  return collective(c.kind, [&] {
    const auto options = c.input().options();
    std::vector<at::Tensor> results;
    Sources sources;
    Targets targets;
    for (size_t r = 0; r < c.inputs.size(); ++r) {
      results.push_back(empty_result(c.shapes[r], options));
      sources.push_back(all_of(c.inputs[r]));
      targets.push_back(all_of_result(results.back()));
    }
    exchange_rows(
        sign(c.kind, c.input().scalar_type(), {}), sources, targets, c);
    return results;
  });
}

at::Tensor SharedBackend::shard_dim_alltoall(const Collective& c) {
  const at::Tensor& input = c.input();
  const Sizes chunks = chunk_sizes(input.size(c.shard_dim), size());
  return collective(c.kind, [&] {
    const Sizes sizes = known_sizes(c);
    const Sizes whole = resized(input.sizes(), c.dim, c10::sum_integers(sizes));
    const Sizes shape =
        resized(whole, c.shard_dim, chunks[static_cast<size_t>(rank())]);
    SharedSignature signature = sign(c.kind, input.scalar_type(), sizes);
    signature.dim = static_cast<uint8_t>(c.dim);
    signature.sizes_hash ^= sign(c.kind, input.scalar_type(), whole).sizes_hash;
    // Offset by 1, because root is 0 in an all_to_all, which has no dimension.
    signature.root = static_cast<int32_t>(c.shard_dim) + 1;
    at::Tensor out = empty_result(shape, input.options());
    exchange_rows(
        signature,
        split_rows<const std::byte>(input, c.shard_dim, chunks),
        split_rows<std::byte>(out, c.dim, sizes),
        c);
    return out;
  });
}

} // namespace dtensor::detail
