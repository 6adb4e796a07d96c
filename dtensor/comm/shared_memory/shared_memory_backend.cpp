// SPDX-License-Identifier: BSD-3-Clause
// Setup of the shared segment. The first member creates the segment and
// publishes its address in the store. The other members open it. Once all
// members have taken their seats, neither the segment's descriptor nor the
// store is needed.
#include <dtensor/comm/shared_memory/shared_memory_backend_impl.h>

#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/shared_memory/shared_backend_impl.h>
#include <dtensor/error.h>
#include <dtensor/version.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <new>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr const char* kStoreKey = "shared_segment";
constexpr int64_t kVersion = DTENSOR_VERSION_MAJOR * 1'000'000 +
    DTENSOR_VERSION_MINOR * 1'000 + DTENSOR_VERSION_PATCH;

// Address of the segment. The first member publishes it in the store.
struct Address {
  int64_t pid = 0;
  int64_t descriptor = 0;
  std::array<uint64_t, 2> key{};
};

std::vector<uint8_t> to_bytes(const Address& address) {
  const std::string text = c10::str(
      address.pid,
      " ",
      address.descriptor,
      " ",
      address.key[0],
      " ",
      address.key[1]);
  return {text.begin(), text.end()};
}

constexpr std::string_view kNoMemory = "refused: ";

[[noreturn]] void throw_refusal(const std::string& why) {
  throw NoSharedMemory({__func__, __FILE__, uint32_t{__LINE__}}, why);
}

Address from_bytes(const std::vector<uint8_t>& bytes) {
  const std::string text(bytes.begin(), bytes.end());
  if (text.starts_with(kNoMemory)) {
    throw_refusal(text.substr(kNoMemory.size(), 1024));
  }
  std::istringstream words(text);
  Address address;
  words >> address.pid >> address.descriptor >> address.key[0] >>
      address.key[1];
  DTENSOR_CHECK(
      !words.fail() && address.pid > 0 && address.descriptor >= 0,
      "[shared_memory_backend] expected the segment's address in the store, "
      "got \"{}\". Give each group its own keys.",
      text.substr(0, 40));
  return address;
}

std::array<uint64_t, 2> draw_key() {
  std::random_device device;
  const auto draw = [&] { return uint64_t{device()} << 32 | device(); };
  return {draw(), draw()};
}

SharedIdentity identity_of(
    const GroupMembers& members,
    const SharedMemoryOptions& options,
    const std::array<uint64_t, 2>& key) {
  return {
      .version = kVersion,
      .key = key,
      .ranks_hash =
          sign(CollectiveKind::kBarrier, at::kLong, members.ranks).sizes_hash,
      .members = static_cast<int64_t>(members.ranks.size()),
      .block_bytes = options.block_bytes};
}

// Creates the segment. On failure, publishes the reason so that the other
// members need not wait.
SharedSegment create_or_refuse(c10d::Store& store, size_t bytes) {
  try {
    return SharedSegment::create(bytes);
  } catch (const c10::Error& error) {
    const std::string why = message_of(error);
    const std::string text = std::string(kNoMemory) + why;
    store.set(kStoreKey, std::vector<uint8_t>(text.begin(), text.end()));
    throw_refusal(why);
  }
}

SharedSegment make_segment(
    const GroupMembers& members,
    c10d::Store& store,
    const SharedMemoryOptions& options,
    size_t bytes) {
  SharedSegment segment = create_or_refuse(store, bytes);
  Address address{this_process().pid, segment.descriptor(), draw_key()};
  auto* const head = new (segment.data()) SharedHead;
  head->identity = identity_of(members, options, address.key);
  store.set(kStoreKey, to_bytes(address));
  return segment;
}

void check_identity(const SharedIdentity& theirs, const SharedIdentity& mine) {
  DTENSOR_CHECK(
      theirs.magic == mine.magic && theirs.key == mine.key,
      "[shared_memory_backend] the memory belongs to another group: its key "
      "differs. Give each group of each job its own keys in the store.");
  DTENSOR_CHECK(
      theirs.version == mine.version,
      "[shared_memory_backend] rank 0 of the group has version {} of this "
      "library, but this rank has {}. Run the same program on all ranks.",
      theirs.version,
      mine.version);
  DTENSOR_CHECK(
      theirs == mine,
      "[shared_memory_backend] rank 0 of the group has {} members and blocks "
      "of {} bytes, but this rank has {} and {}, or other options. Make the "
      "group with the same options on all ranks.",
      theirs.members,
      theirs.block_bytes,
      mine.members,
      mine.block_bytes);
}

SharedSegment open_segment(
    const GroupMembers& members,
    c10d::Store& store,
    const SharedMemoryOptions& options,
    size_t bytes) {
  try {
    store.wait({kStoreKey}, options.timeout);
  } catch (const std::exception& error) {
    DTENSOR_THROW(
        "[shared_memory_backend] timed out after {} ms waiting for rank {} to "
        "make the memory of \"{}\": {}. Make the group on every rank, or raise "
        "the timeout.",
        options.timeout.count(),
        members.ranks.front(),
        members.label,
        std::string(error.what()).substr(0, 200));
  }
  const Address address = from_bytes(store.get(kStoreKey));
  SharedSegment segment =
      SharedSegment::open(address.pid, address.descriptor, bytes);
  check_identity(
      reinterpret_cast<const SharedHead*>(segment.data())->identity,
      identity_of(members, options, address.key));
  return segment;
}

void check_options(
    const GroupMembers& members,
    const SharedMemoryOptions& options) {
  const auto size = static_cast<int64_t>(members.ranks.size());
  DTENSOR_CHECK_VALUE(
      size <= kMostMembers,
      "[shared_memory_backend] \"{}\" has {} ranks, and at most {} can share "
      "memory. Use another backend for it.",
      members.label,
      size,
      kMostMembers);
  DTENSOR_CHECK_VALUE(
      options.block_bytes > 0 && options.block_bytes % kNoticeBytes == 0,
      "[shared_memory_backend] block_bytes is {}. Pass a positive multiple of "
      "{}.",
      options.block_bytes,
      kNoticeBytes);
  DTENSOR_CHECK_VALUE(
      options.block_bytes / size >= kSliceAlignment,
      "[shared_memory_backend] block_bytes is {}, and \"{}\" has {} ranks. "
      "Pass at least {} bytes for each rank.",
      options.block_bytes,
      members.label,
      size,
      kSliceAlignment);
}

} // namespace

GroupBackendPtr shared_memory_backend(
    GroupMembers members,
    const c10::intrusive_ptr<c10d::Store>& store,
    const SharedMemoryOptions& options) {
  check_options(members, options);
  const size_t bytes = SharedLayout::bytes(
      static_cast<int64_t>(members.ranks.size()), options.block_bytes);
  const bool makes = members.rank == 0;
  const auto segment = std::make_shared<SharedSegment>(
      makes ? make_segment(members, *store, options, bytes)
            : open_segment(members, *store, options, bytes));
  auto channel = std::make_unique<SharedChannel>(
      segment, members, options.block_bytes, options.timeout);
  const auto forget = c10::make_scope_exit([&] {
    if (makes) {
      try {
        store->deleteKey(kStoreKey);
      } catch (const std::exception&) {
        // The store may be lost, and is not needed any more.
      }
    }
  });
  channel->arrive();
  auto results = std::make_shared<SharedArena>(
      segment, channel->layout().arena(members.rank), kArenaBytes);
  return std::make_shared<SharedBackend>(
      std::move(members), std::move(channel), std::move(results));
}

} // namespace dtensor::detail
