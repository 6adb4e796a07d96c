// SPDX-License-Identifier: BSD-3-Clause
// Parses any bytes as a message from another process during rendezvous. The
// first byte selects the kind of message; the rest is the message.
#include <dtensor/comm/backend/packed_call_impl.h>
#include <dtensor/comm/processes/greeting_impl.h>
#include <dtensor/comm/processes/sockets_impl.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "fuzz.h"

namespace {

using namespace dtensor;
using namespace dtensor::detail;

void expect(bool holds, const char* what) {
  if (!holds) {
    fuzz::fail("a message that was not checked", what);
  }
}

void read_greeting(const std::string& text) {
  LaunchEnv env;
  env.size = 2;
  const std::string mine = greeting(env, {"oak", "here", {1, 1}});
  const Peer peer = check_greeting(text, mine, 1);
  expect(peer.process.pid > 0 && !peer.host.empty(), "greeting");
}

// Parses the text behind the three lines that must be equal on all ranks.
void read_rest_of_greeting(const std::string& text) {
  LaunchEnv env;
  env.size = 2;
  const std::string mine = greeting(env, {"oak", "here", {1, 1}});
  const Peer peer =
      check_greeting(mine.substr(0, mine.find("oak")) + text, mine, 1);
  expect(peer.process.pid > 0 && !peer.host.empty(), "greeting");
}

void read_address(const std::string& text) {
  const auto [host, port] = parse_address(text);
  expect(!host.empty() && port >= 1 && port <= kLastPort, "address");
}

void read_request(const std::string& text) {
  NoteRequest bytes{};
  std::copy_n(text.begin(), std::min(text.size(), bytes.size()), bytes.begin());
  const auto rank = parse_note_request(bytes, 4);
  expect(!rank || (*rank >= 1 && *rank < 4), "request");
}

void read_note(const std::string& text) {
  const int port = parse_note(text);
  expect(port >= 1 && port <= kLastPort, "note");
}

void read_file(const std::string& text) {
  invalid_store_file_reason(text);
}

void read_table(const std::string& text) {
  lists_remote_connection(text, 29500);
}

void read_call(const std::string& text) {
  const RemoteCall told = unpack(text, 1, 2);
  const Call mine;
  Call theirs = told.call;
  theirs.notes = &told.notes;
  check_agreement({&mine, &theirs}, {0, 1}, "tp");
}

// Parses two calls. Both may come from other processes, so they may be of the
// same kind.
void read_two_calls(const std::string& text) {
  const RemoteCall told = unpack(text, 0, 2);
  RemoteCall again = unpack(text, 1, 2);
  again.call.dim ^= 1;
  check_agreement({&told.call, &again.call}, {0, 1}, "tp");
}

const std::vector<std::function<void(const std::string&)>> kReaders = {
    read_greeting,
    read_rest_of_greeting,
    read_address,
    read_request,
    read_note,
    read_file,
    read_table,
    read_call,
    read_two_calls};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  if (count == 0) {
    return 0;
  }
  const std::string rest(reinterpret_cast<const char*>(bytes) + 1, count - 1);
  // The letter '0' selects the first reader.
  const size_t which = static_cast<uint8_t>(bytes[0] - '0') % kReaders.size();
  // Errors quote messages, so they may contain any text.
  try {
    kReaders[which](rest);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (!text.starts_with("[")) {
      fuzz::fail("an error without [where]", text);
    }
  }
  return 0;
}
