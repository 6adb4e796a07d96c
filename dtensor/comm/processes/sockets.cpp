// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/sockets_impl.h>

#include <dtensor/error.h>

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <thread>

namespace dtensor::detail {
namespace {

constexpr auto kFirstPause = std::chrono::milliseconds(5);

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Returns the addresses of a host, or no addresses and an error code.
std::pair<Addresses, int> look_up(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int wrong =
      getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {Addresses(found, freeaddrinfo), wrong};
}

Addresses resolve(const std::string& host, int port) {
  auto [found, wrong] = look_up(host, port);
  DTENSOR_CHECK(
      wrong == 0,
      "[init_process_group] cannot resolve host \"{}\": {}. Set MASTER_ADDR to "
      "the name or address of rank 0's host.",
      host,
      gai_strerror(wrong));
  return std::move(found);
}

// Connects a new socket. Returns 0, or the error number.
int try_to_connect(Descriptor& made, const addrinfo& to, Deadline deadline) {
  const int type = to.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK;
  made = Descriptor(socket(to.ai_family, type, to.ai_protocol));
  if (connect(made.get(), to.ai_addr, to.ai_addrlen) == 0) {
    return 0;
  }
  if (errno != EINPROGRESS) {
    return errno;
  }
  if (!is_ready(made, POLLOUT, deadline)) {
    return ETIMEDOUT;
  }
  int wrong = 0;
  socklen_t length = sizeof(wrong);
  getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &wrong, &length);
  return wrong;
}

// Returns true and a connection if a process listens at the address now;
// otherwise sets `wrong` to the reason.
bool has_listener(
    Descriptor& made,
    const std::string& host,
    int port,
    Deadline deadline,
    std::string& wrong) {
  constexpr auto kOneAddress = std::chrono::seconds(3);
  const auto [addresses, unknown] = look_up(host, port);
  if (unknown != 0) {
    wrong = gai_strerror(unknown);
  }
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    const auto until =
        std::min(deadline, std::chrono::steady_clock::now() + kOneAddress);
    const int error = try_to_connect(made, *a, until);
    if (error == 0) {
      return true;
    }
    wrong = std::strerror(error);
  }
  return false;
}

struct End {
  std::string address;
  int port = 0;
};

// Parses an address and port such as "0100007F:1F90".
End parse_end(const std::string& text) {
  const size_t colon = text.find(':');
  End end{text.substr(0, colon), 0};
  if (colon != std::string::npos) {
    std::from_chars(
        text.data() + colon + 1, text.data() + text.size(), end.port, 16);
  }
  return end;
}

} // namespace

Descriptor listen_at(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port);
  int wrong = 0;
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    Descriptor made(
        socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    const int on = 1;
    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(made.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        listen(made.get(), SOMAXCONN) == 0) {
      return made;
    }
    wrong = errno;
  }
  DTENSOR_THROW(
      "[init_process_group] rank 0 cannot listen at {}:{}: {}. Set MASTER_ADDR "
      "to an address of rank 0's host and MASTER_PORT to a free port.",
      host,
      port,
      std::strerror(wrong));
}

Descriptor
await_listener(const std::string& host, int port, Deadline deadline) {
  constexpr auto kLongestPause = std::chrono::milliseconds(200);
  auto pause = kFirstPause;
  std::string wrong;
  Descriptor made;
  while (!has_listener(made, host, port, deadline, wrong)) {
    DTENSOR_CHECK(
        std::chrono::steady_clock::now() < deadline,
        "[init_process_group] the store at {}:{} cannot be reached: {}. Check "
        "that the process that hosts it, rank 0 or the launcher, is running, "
        "and that MASTER_ADDR and MASTER_PORT are those of this job.",
        host,
        port,
        wrong);
    std::this_thread::sleep_until(
        std::min(deadline, std::chrono::steady_clock::now() + pause));
    pause = std::min(2 * pause, kLongestPause);
  }
  return made;
}

int milliseconds_to(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return static_cast<int>(
      std::clamp<int64_t>(left.count(), 0, std::numeric_limits<int>::max()));
}

bool is_ready(const Descriptor& socket, int16_t events, Deadline deadline) {
  pollfd poll_of{socket.get(), events, 0};
  return poll(&poll_of, 1, milliseconds_to(deadline)) == 1;
}

bool lists_remote_connection(std::string_view table, int port) {
  constexpr const char* kEstablished = "01";
  std::istringstream lines{std::string(table)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string number;
    std::string local;
    std::string remote;
    std::string state;
    fields >> number >> local >> remote >> state;
    const End here = parse_end(local);
    if (state == kEstablished && here.port == port &&
        here.address != parse_end(remote).address) {
      return true;
    }
  }
  return false;
}

bool has_remote_connections(int port) {
  for (const char* path : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(path);
    const std::string table{
        std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (lists_remote_connection(table, port)) {
      return true;
    }
  }
  return false;
}

} // namespace dtensor::detail
