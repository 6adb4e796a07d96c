// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/open_store_impl.h>

#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/processes/greeting_impl.h>
#include <dtensor/error.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <vector>

namespace dtensor::detail {
namespace {

constexpr auto kKnockAgain = std::chrono::milliseconds(5);

struct LocalAddress {
  sockaddr_un address{};
  socklen_t length = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&address);
  }
};

// Shortens a name to the longest socket name. The hash distinguishes names that
// differ only beyond that length.
std::string fitted_name(const std::string& name, size_t longest) {
  constexpr size_t kHashes = size_t{2} * (1 + 20);
  if (name.size() <= longest) {
    return name;
  }
  const std::hash<std::string> hash;
  return c10::str(
      name.substr(0, longest - kHashes),
      "#",
      hash(name),
      "#",
      hash(name + "#"));
}

// Returns an address in the abstract socket namespace, which creates no files.
LocalAddress abstract_address(const std::string& full_name) {
  LocalAddress result;
  result.address.sun_family = AF_UNIX;
  const std::string name =
      fitted_name(full_name, sizeof(result.address.sun_path) - 1);
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());
  result.length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

// Returns the credentials of the process at the other end of a connection.
ucred peer_of(const Descriptor& connection) {
  ucred who{.pid = 0, .uid = ~uid_t{0}, .gid = 0};
  socklen_t length = sizeof(who);
  getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &who, &length);
  return who;
}

Descriptor local_socket() {
  return Descriptor(
      socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void send_text(const Descriptor& to, const std::string& text) {
  // The send cannot block: a few bytes always fit into the buffer of a new
  // connection.
  static_cast<void>(!::send(to.get(), text.data(), text.size(), MSG_NOSIGNAL));
}

// The server of rank 0, which hands out the port.
class PortServer {
 public:
  PortServer(const std::string& name, int port, int64_t size)
      : door_(local_socket()),
        port_(std::to_string(port)),
        size_(size) {
    const LocalAddress address = abstract_address(name);
    DTENSOR_CHECK(
        bind(door_.get(), address.get(), address.length) == 0 &&
            listen(door_.get(), SOMAXCONN) == 0,
        "[init_process_group] rank 0 cannot listen at the local name \"{}\": "
        "{}. Stop the job that uses the name, or set MASTER_ADDR and "
        "MASTER_PORT.",
        name,
        std::strerror(errno));
  }

  void serve(Deadline deadline) {
    while (static_cast<int64_t>(served_.size()) < size_ - 1) {
      DTENSOR_CHECK(
          wait(deadline),
          "[init_process_group] {} of {} ranks of this host did not join in "
          "time. Check that they are running; if they were started separately, "
          "set MASTER_ADDR and MASTER_PORT.",
          missing_text(),
          size_);
      read_visitors();
      accept_visitor();
    }
  }

 private:
  struct Visitor {
    Descriptor connection;
    pid_t process = 0;
    NoteRequest request{};
    size_t bytes = 0;
  };

  std::string missing_text() const {
    constexpr size_t kMost = 8;
    std::vector<int64_t> missing;
    for (int64_t rank = 1; rank < size_ && missing.size() <= kMost; ++rank) {
      if (!served_.contains(rank)) {
        missing.push_back(rank);
      }
    }
    return missing.size() <= kMost
        ? rank_list(missing)
        : c10::str(size_ - 1 - static_cast<int64_t>(served_.size()));
  }

  // Returns false at the deadline. The clock is checked too, because poll()
  // returns at once if a visitor cannot be accepted (no descriptors left).
  bool wait(Deadline deadline) const {
    std::vector<pollfd> polled = {{door_.get(), POLLIN, 0}};
    for (const Visitor& visitor : visitors_) {
      polled.push_back({visitor.connection.get(), POLLIN, 0});
    }
    return poll(polled.data(), polled.size(), milliseconds_to(deadline)) != 0 &&
        std::chrono::steady_clock::now() < deadline;
  }

  void accept_visitor() {
    constexpr size_t kMostVisitors = 512; // not yet identified
    Descriptor connection(
        accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const ucred who = peer_of(connection);
    if (connection.get() < 0 || who.uid != geteuid()) {
      return;
    }
    // Drop the oldest visitor, because silent connections must not block the
    // ranks.
    if (visitors_.size() == kMostVisitors) {
      visitors_.pop_front();
    }
    visitors_.push_back({std::move(connection), who.pid});
  }

  void read_visitors() {
    for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
      visitor = hear(*visitor) ? visitors_.erase(visitor) : ++visitor;
    }
  }

  // Reads from the visitor. Returns true if it has disconnected or been
  // answered.
  bool hear(Visitor& visitor) {
    const ssize_t got = recv(
        visitor.connection.get(),
        visitor.request.data() + visitor.bytes,
        visitor.request.size() - visitor.bytes,
        0);
    if (got < 0) {
      return errno != EAGAIN && errno != EINTR;
    }
    visitor.bytes += static_cast<size_t>(got);
    if (visitor.bytes == visitor.request.size()) {
      answer(visitor);
    }
    return got == 0 || visitor.bytes == visitor.request.size();
  }

  // Answers a complete request. A process may send its request again, for
  // example after a lost connection.
  void answer(const Visitor& visitor) {
    const auto rank = parse_note_request(visitor.request, size_);
    if (!rank) {
      send_text(
          visitor.connection, note_refusal("its request has an invalid rank"));
      return;
    }
    const auto [known, is_new] = served_.emplace(*rank, visitor.process);
    send_text(
        visitor.connection,
        known->second == visitor.process
            ? note_answer(port_)
            : note_refusal(detail::format_text(
                  "process {} is already registered as rank {}",
                  known->second,
                  *rank)));
  }

  Descriptor door_;
  std::string port_;
  int64_t size_;
  std::list<Visitor> visitors_;
  std::map<int64_t, pid_t> served_; // by rank
};

// Connects to a process of this user that listens at `address`. Returns nullopt
// and sets `obstacle` if there is no such process.
std::optional<Descriptor> connect_to(
    const LocalAddress& address,
    std::string& obstacle) {
  Descriptor connection = local_socket();
  // connect() fails with EAGAIN if the backlog is full.
  if (connect(connection.get(), address.get(), address.length) != 0) {
    obstacle = errno == EAGAIN ? "its socket accepts no more connections"
                               : "no process listens at its local name";
    return std::nullopt;
  }
  const ucred who = peer_of(connection);
  if (who.uid != geteuid()) {
    obstacle = detail::format_text(
        "process {} of user {} uses its local name", who.pid, who.uid);
    return std::nullopt;
  }
  obstacle = detail::format_text(
      "process {} listens at its local name but does not answer", who.pid);
  return connection;
}

// Requests the port and returns the answer; "" if the connection was closed or
// the deadline passed.
std::string ask(const Descriptor& desk, int64_t rank, Deadline deadline) {
  const NoteRequest request = note_request(rank);
  send_text(desk, {request.data(), request.size()});
  if (!is_ready(desk, POLLIN, deadline)) {
    return "";
  }
  std::string text(kNoteBytes, '\0');
  const ssize_t got = recv(desk.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

} // namespace

void hand_out_port(
    const std::string& name,
    int port,
    int64_t size,
    Deadline deadline) {
  PortServer(name, port, size).serve(deadline);
}

int fetch_port(const std::string& name, int64_t rank, Deadline deadline) {
  const LocalAddress address = abstract_address(name);
  std::string obstacle; // reason why the port has not been received so far
  do {
    if (const auto desk = connect_to(address, obstacle)) {
      const std::string text = ask(*desk, rank, deadline);
      if (!text.empty()) {
        return parse_note(text);
      }
    }
    std::this_thread::sleep_for(kKnockAgain);
  } while (std::chrono::steady_clock::now() < deadline);
  DTENSOR_THROW(
      "[init_process_group] rank 0 was not found on this host in time: {}. "
      "Check that it is running; if ranks were started separately or on "
      "several hosts, set MASTER_ADDR and MASTER_PORT.",
      obstacle);
}

} // namespace dtensor::detail
