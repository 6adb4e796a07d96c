// SPDX-License-Identifier: BSD-3-Clause
// Messages that processes exchange during the rendezvous. The parsers here
// accept untrusted bytes. They throw RuntimeError or ValueError if the bytes
// are malformed.
#pragma once

#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/processes/process_id_impl.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {

/// Information that each rank publishes about itself at the rendezvous.
struct Peer {
  /// Name of the rank's host, and an identifier of the host. The identifiers of
  /// two processes are equal if the processes can share memory and reach each
  /// other's loopback interface.
  std::string host_name;
  std::string host;
  ProcessId process;
};

/// Returns this process's greeting: one field per line. The first three fields
/// must be equal on all ranks.
std::string greeting(const LaunchEnv& env, const Peer& peer);

/// Parses the greeting `theirs` that rank `rank` sent. Throws RuntimeError
/// unless it is complete and of the same job as `mine`.
Peer check_greeting(
    const std::string& theirs,
    const std::string& mine,
    int64_t rank);

/// Parses "host:port" or "[address]:port". Throws ValueError.
std::pair<std::string, int> parse_address(const std::string& address);

/// Request that a rank sends to rank 0 at the local rendezvous: its rank
/// number. The answer is rank 0's port, or a reason for refusal.
using NoteRequest = std::array<char, 8>;
NoteRequest note_request(int64_t rank);
/// Returns the requesting rank; nullopt unless it is in [1, `size`).
std::optional<int64_t> parse_note_request(
    const NoteRequest& bytes,
    int64_t size);

/// Maximum length of an answer.
inline constexpr size_t kNoteBytes = 256;
std::string note_answer(std::string_view port);
std::string note_refusal(std::string_view why);
/// Returns the port from an answer. Throws RuntimeError for a refusal or
/// garbage.
int parse_note(std::string_view bytes);

/// The first bytes that LibTorch's clients of a TCPStore send: the query
/// VALIDATE with a magic number, and the query PING with a number, which the
/// store returns.
using StoreRequest = std::array<char, 10>;
StoreRequest store_request();
/// Returns true if `bytes` are the answer of a store, or its beginning.
bool begins_store_answer(std::string_view bytes);
/// Returns the beginning of another service's answer, for messages.
std::string foreign_answer_text(std::string_view bytes);

/// Returns the reason why `bytes` are not the content of a c10d::FileStore's
/// file; "" if they are.
std::string invalid_store_file_reason(std::string_view bytes);

} // namespace dtensor::detail
