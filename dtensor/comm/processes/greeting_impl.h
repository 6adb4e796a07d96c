// SPDX-License-Identifier: BSD-3-Clause
// What processes that meet read from each other. Every function here takes
// bytes that anyone may have written, and throws RuntimeError or ValueError for
// those that are malformed.
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

/// What ranks tell each other when they meet.
struct Peer {
  /// Where it runs: its name, and a text that is equal for two processes that
  /// can share memory and reach each other's loopback interface.
  std::string host_name;
  std::string host;
  ProcessId process;
};

/// Returns this process's greeting: a field a line, of which the first three
/// have to be equal on all ranks.
std::string greeting(const LaunchEnv& env, const Peer& peer);

/// Returns the peer that sent `theirs` as rank `rank`. Throws RuntimeError
/// unless the greeting is complete and of the job of `mine`.
Peer check_greeting(
    const std::string& theirs,
    const std::string& mine,
    int64_t rank);

/// Returns host and port of "host:port" or "[address]:port". Throws ValueError.
std::pair<std::string, int> parse_address(const std::string& address);

/// Messages at a local meeting name: a rank asks for its note by its number,
/// and gets the note or a reason for having none.
using NoteRequest = std::array<char, 8>;
NoteRequest note_request(int64_t rank);
/// Returns the rank that asks; nothing unless it is one of 1 to `size` - 1.
std::optional<int64_t> parse_note_request(
    const NoteRequest& bytes,
    int64_t size);

/// The longest answer.
inline constexpr size_t kNoteBytes = 256;
std::string note_answer(std::string_view port);
std::string note_refusal(std::string_view why);
/// Returns the port. Throws RuntimeError for a refusal or garbage.
int parse_note(std::string_view bytes);

/// Returns why `bytes` are not the content of a c10d::FileStore's file; empty
/// if they are.
std::string meeting_file_objection(std::string_view bytes);

} // namespace dtensor::detail
