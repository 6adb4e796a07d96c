// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/greeting_impl.h>

#include <dtensor/error.h>
#include <dtensor/version.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <sstream>

namespace dtensor::detail {
namespace {

constexpr size_t kGreetingBytes = 4096;
constexpr char kNote = 'n';
constexpr char kRefusal = 'r';
// The bytes after PING (13, a carriage return), which the store returns. These
// bytes end the lines and headers of text protocols, whose services would
// otherwise wait for more. The last byte is not text.
constexpr std::string_view kPingNumber = "\n\r\n\xD7";

// Makes text from another process safe to quote in an error.
std::string printable(std::string_view text) {
  std::string result(text);
  std::ranges::replace_if(
      result, [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  return result;
}

std::optional<int> parse_port(std::string_view text) {
  int port = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, wrong] = std::from_chars(text.data(), end, port);
  return wrong == std::errc() && rest == end && port >= 1 && port <= kLastPort
      ? std::optional(port)
      : std::nullopt;
}

} // namespace

std::string greeting(const LaunchEnv& env, const Peer& peer) {
  return detail::format_text(
      "dtensor {}.{}.{}\njob {}\n{} ranks\n{}\n{}\n{} {}\n",
      DTENSOR_VERSION_MAJOR,
      DTENSOR_VERSION_MINOR,
      DTENSOR_VERSION_PATCH,
      env.job,
      env.size,
      peer.host_name,
      peer.host,
      peer.process.pid,
      peer.process.started);
}

Peer check_greeting(
    const std::string& theirs,
    const std::string& mine,
    int64_t rank) {
  std::istringstream their_lines(theirs.substr(0, kGreetingBytes));
  std::istringstream my_lines(mine);
  std::string their_line;
  std::string my_line;
  for (int i = 0; i < 3; ++i) {
    their_line.clear();
    std::getline(their_lines, their_line);
    std::getline(my_lines, my_line);
    DTENSOR_CHECK(
        their_line == my_line,
        "[init_process_group] process claiming rank {} belongs to another job "
        "or version: \"{}\", expected \"{}\". Start all ranks of one job with "
        "the same version of dtensor, and no other job at its address.",
        rank,
        printable(their_line.substr(0, 80)),
        my_line);
  }
  Peer peer;
  std::getline(their_lines, peer.host_name);
  std::getline(their_lines, peer.host);
  their_lines >> peer.process.pid >> peer.process.started;
  DTENSOR_CHECK(
      !their_lines.fail() && peer.process.pid > 0 && !peer.host.empty(),
      "[init_process_group] cannot read the first message of rank {}. Start "
      "all ranks of one job, and no other job at its address.",
      rank);
  peer.host_name = printable(peer.host_name);
  return peer;
}

std::pair<std::string, int> parse_address(const std::string& address) {
  const size_t colon = address.rfind(':');
  const auto port = colon == std::string::npos
      ? std::nullopt
      : parse_port(std::string_view(address).substr(colon + 1));
  std::string host = port ? address.substr(0, colon) : "";
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  }
  DTENSOR_CHECK_VALUE(
      !host.empty(),
      "[init_process_group] no host and port in {}. Write tcp://host:port, "
      "with a port from 1 to {}.",
      quoted("tcp://" + address),
      kLastPort);
  return {host, *port};
}

NoteRequest note_request(int64_t rank) {
  NoteRequest bytes{};
  std::memcpy(bytes.data(), &rank, sizeof(rank));
  return bytes;
}

std::optional<int64_t> parse_note_request(
    const NoteRequest& bytes,
    int64_t size) {
  int64_t rank = 0;
  std::memcpy(&rank, bytes.data(), sizeof(rank));
  return rank >= 1 && rank < size ? std::optional(rank) : std::nullopt;
}

std::string note_answer(std::string_view port) {
  return kNote + std::string(port);
}

std::string note_refusal(std::string_view why) {
  return kRefusal + std::string(why.substr(0, kNoteBytes - 1));
}

int parse_note(std::string_view bytes) {
  DTENSOR_CHECK(
      !bytes.starts_with(kRefusal),
      "[init_process_group] rank 0 of this host rejected this rank: {}. Start "
      "each rank once.",
      printable(bytes.substr(1)));
  const auto port =
      bytes.starts_with(kNote) ? parse_port(bytes.substr(1)) : std::nullopt;
  DTENSOR_CHECK(
      port.has_value(),
      "[init_process_group] rank 0 of this host sent an invalid store port: "
      "\"{}\". Start the same program on all ranks, or set MASTER_ADDR and "
      "MASTER_PORT.",
      printable(bytes.substr(0, 40)));
  return *port;
}

StoreRequest store_request() {
  constexpr char kValidate = 0;
  constexpr uint32_t kMagic = 0x3C85F7CE;
  constexpr char kPing = 13;
  StoreRequest request{kValidate};
  std::memcpy(&request[1], &kMagic, sizeof(kMagic));
  request[5] = kPing;
  kPingNumber.copy(&request[6], kPingNumber.size());
  return request;
}

bool begins_store_answer(std::string_view bytes) {
  return kPingNumber.starts_with(bytes);
}

std::string foreign_answer_text(std::string_view bytes) {
  return "\"" + printable(bytes.substr(0, 40)) + "\"";
}

// The file is a sequence of keys and values, each preceded by its length.
std::string invalid_store_file_reason(std::string_view bytes) {
  size_t texts = 0;
  for (; !bytes.empty(); ++texts) {
    uint32_t length = 0;
    if (bytes.size() < sizeof(length)) {
      return "it ends in the middle of a length";
    }
    std::memcpy(&length, bytes.data(), sizeof(length));
    bytes.remove_prefix(sizeof(length));
    if (length > bytes.size()) {
      return detail::format_text(
          "string {} has length {}, but {} bytes remain",
          texts,
          length,
          bytes.size());
    }
    bytes.remove_prefix(length);
  }
  return texts % 2 == 0 ? "" : "its last key has no value";
}

} // namespace dtensor::detail
