// SPDX-License-Identifier: BSD-3-Clause
// SharedLayout: layout of a group's shared segment.
//
// The segment starts with a head that identifies it. The head is followed, for
// each member, by a seat, two notices and two blocks, for odd and even stages
// (shared_channel_impl.h). Next come a message ring for each ordered pair of
// members (shared_mail_impl.h), and an arena for each member's results
// (shared_arena_impl.h). Only touched pages take memory. A new segment is all
// zeros, which is a valid initial state of every field except the identity.
#pragma once

#include <c10/core/ScalarType.h>
#include <dtensor/comm/observer.h>
#include <dtensor/comm/processes/process_id_impl.h>
#include <dtensor/layout/placement.h>

#include <sched.h>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace dtensor::detail {

/// Maximum number of bytes that a notice itself carries.
constexpr int64_t kNoticeBytes = 4096;
/// Alignment of each member's slice of a block in a reduction, so that no cache
/// line has two writers.
constexpr int64_t kSliceAlignment = 64;
/// Capacity of a ring: bytes in flight from one member to another.
constexpr int64_t kMailBytes = 128 << 10;
/// Size of each member's arena. Only touched pages take memory.
constexpr int64_t kArenaBytes = 64 << 20;
/// Alignment that avoids false sharing: processors fetch two lines of 64 bytes.
constexpr int64_t kLine = 128;

/// Fields that must be equal for all members of one group.
struct SharedIdentity {
  std::array<char, 8> magic = {'d', 't', 'e', 'n', 's', 'o', 'r', '\0'};
  int64_t version = 0;
  /// Random key of this segment.
  std::array<uint64_t, 2> key{};
  /// Hash of the members' global ranks.
  uint64_t ranks_hash = 0;
  int64_t members = 0;
  int64_t block_bytes = 0;

  friend bool operator==(const SharedIdentity&, const SharedIdentity&) =
      default;
};

struct SharedHead {
  SharedIdentity identity;
  /// Futex word on which members sleep, and the number of sleeping members.
  alignas(kLine) std::atomic<uint32_t> bell{0};
  std::atomic<uint32_t> sleepers{0};
  /// State of the group; `reason` is valid once the state is kBroken.
  enum : uint32_t { kIntact, kBreaking, kBroken };
  alignas(kLine) std::atomic<uint32_t> state{kIntact};
  std::array<char, 1024> reason{};
};

struct alignas(kLine) SharedSeat {
  enum : uint32_t { kEmpty, kTaken, kLeft };
  std::atomic<uint32_t> state{kEmpty};
  ProcessId process;
  /// Cores that the process may run on.
  cpu_set_t cores{};
  /// Number of times that data was put into a ring for this member.
  alignas(kLine) std::atomic<int64_t> mail{0};
};

/// Signature of a member's call. Equal signatures mean the same collective.
struct SharedSignature {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  at::ScalarType dtype = at::kByte;
  uint8_t dim = 0;
  /// Root; in shard_dim_alltoall, 1 + the dimension that is sharded.
  int32_t root = 0;
  int64_t numel = 0;
  uint64_t sizes_hash = 0;

  friend bool operator==(const SharedSignature& a, const SharedSignature& b) {
    return std::memcmp(&a, &b, sizeof(SharedSignature)) == 0;
  }
};
static_assert(std::has_unique_object_representations_v<SharedSignature>);

/// Message of a member in one stage. The fields that most stages need lie in
/// one cache line.
struct alignas(kLine) SharedNotice {
  /// Stage of the other fields; written last.
  std::atomic<int64_t> stage{0};
  SharedSignature signature;
  std::array<std::byte, kNoticeBytes> data; // NOLINT: written on use
};
static_assert(
    offsetof(SharedNotice, data) % 32 == 0,
    "vector instructions want it so");

/// Numbers of bytes written and read so far. The data follows the struct.
struct SharedRing {
  alignas(kLine) std::atomic<int64_t> written{0};
  alignas(kLine) std::atomic<int64_t> read{0};
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<int64_t>::is_always_lock_free);

class SharedLayout {
 public:
  SharedLayout(std::byte* base, int64_t members, int64_t block_bytes)
      : base_(base),
        members_(members),
        block_bytes_(block_bytes) {}

  static size_t bytes(int64_t members, int64_t block_bytes) {
    const SharedLayout layout(nullptr, members, block_bytes);
    return static_cast<size_t>(layout.arenas() + members * kArenaBytes);
  }

  int64_t members() const {
    return members_;
  }
  int64_t block_bytes() const {
    return block_bytes_;
  }
  SharedHead& head() const {
    return at<SharedHead>(0);
  }
  SharedSeat& seat(int64_t member) const {
    return at<SharedSeat>(kSeats + member * kSeat);
  }
  SharedNotice& notice(int64_t member, int64_t stage) const {
    return at<SharedNotice>(notices() + place(member, stage) * kNotice);
  }
  std::byte* block(int64_t member, int64_t stage) const {
    return base_ + blocks() + place(member, stage) * block_bytes_;
  }
  SharedRing& ring(int64_t from, int64_t to) const {
    return at<SharedRing>(rings() + (from * members_ + to) * kRing);
  }
  std::byte* ring_data(int64_t from, int64_t to) const {
    return reinterpret_cast<std::byte*>(&ring(from, to)) + sizeof(SharedRing);
  }
  std::byte* arena(int64_t member) const {
    return base_ + arenas() + member * kArenaBytes;
  }

 private:
  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kSeats = sizeof(SharedHead);
  static constexpr int64_t kSeat = sizeof(SharedSeat);
  static constexpr int64_t kNotice = sizeof(SharedNotice);
  static constexpr int64_t kRing = sizeof(SharedRing) + kMailBytes;

  static int64_t page_after(int64_t offset) {
    return (offset + kPage - 1) / kPage * kPage;
  }
  static int64_t place(int64_t member, int64_t stage) {
    return 2 * member + stage % 2;
  }
  int64_t notices() const {
    return page_after(kSeats + members_ * kSeat);
  }
  int64_t blocks() const {
    return page_after(notices() + 2 * members_ * kNotice);
  }
  int64_t rings() const {
    return page_after(blocks() + 2 * members_ * block_bytes_);
  }
  int64_t arenas() const {
    return page_after(rings() + members_ * members_ * kRing);
  }
  template <typename T>
  T& at(int64_t offset) const {
    return *reinterpret_cast<T*>(base_ + offset);
  }

  std::byte* base_;
  int64_t members_;
  int64_t block_bytes_;
};

} // namespace dtensor::detail
