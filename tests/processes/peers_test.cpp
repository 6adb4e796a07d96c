// SPDX-License-Identifier: BSD-3-Clause
// The ranks for which a failing or leaving rank waits before it returns.
// Instead of measuring time, most tests count the requests of the rank to the
// store.
#include <dtensor/comm/processes/peers_impl.h>
#include <dtensor/comm/processes/sockets_impl.h>
#include <gtest/gtest.h>
#include <tests/free_port.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace TEST_SOURCE {

using namespace dtensor::detail;

// A store that counts requests, and calls a function at each of them.
class CountingStore final : public c10d::HashStore {
 public:
  explicit CountingStore(std::function<void(CountingStore&, int)> at_question)
      : at_question_(std::move(at_question)) {}

  bool check(const std::vector<std::string>& keys) override {
    at_question_(*this, ++questions_);
    return HashStore::check(keys);
  }
  int questions() const {
    return questions_;
  }

 private:
  std::function<void(CountingStore&, int)> at_question_;
  std::atomic<int> questions_{0};
};

// Returns the number of requests of a rank whose only peer is the given
// process.
int questions_beside(
    const ProcessId& peer,
    const std::function<void(CountingStore&, int)>& at_question) {
  auto store = c10::make_intrusive<CountingStore>(at_question);
  Rendezvous rendezvous{.store = store, .keeps_store = true};
  rendezvous.peers = {{"oak", "here", this_process()}, {"oak", "here", peer}};
  const auto peers = std::make_shared<Peers>(0, std::move(rendezvous));
  peers->publish_failure("no such row", /*is_cause=*/true);
  peers->linger();
  return store->questions();
}

TEST(Peers, WaitForNoRankThatHasEnded) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_LT(
      questions_beside({.pid = child, .started = 1}, [](auto&, int) {}), 10);
}

TEST(Peers, WaitUntilALivingRankHasReported) {
  constexpr int kReport = 20;
  const int questions =
      questions_beside(this_process(), [](CountingStore& store, int question) {
        if (question == kReport) {
          store.set("failed/1", std::vector<uint8_t>{'s'});
        }
      });
  EXPECT_GE(questions, kReport);
  EXPECT_LT(questions, kReport + 10);
}

// A store that is lost with its process.
class LostStore final : public c10d::HashStore {
 public:
  void set(const std::string&, const std::vector<uint8_t>&) override {
    TORCH_CHECK(false, "Connection reset by peer");
  }
  bool check(const std::vector<std::string>&) override {
    TORCH_CHECK(false, "Connection reset by peer");
  }
};

TEST(Peers, NeedNoStoreToEnd) {
  Rendezvous rendezvous{
      .store = c10::make_intrusive<LostStore>(), .keeps_store = true};
  rendezvous.peers = {
      {"oak", "here", this_process()}, {"oak", "here", this_process()}};
  const auto peers = std::make_shared<Peers>(1, std::move(rendezvous));
  peers->publish_failure("no such row", /*is_cause=*/true);
  peers->linger();
  peers->leave(std::chrono::seconds(30));
  EXPECT_EQ(
      peers->describe_failures({0, 1}),
      "the store cannot be reached, so the process that hosted it, rank 0 "
      "(process " +
          std::to_string(getpid()) + " on oak) or the launcher, has ended");
}

TEST(Peers, OfLongListsAreNumbers) {
  Rendezvous rendezvous{.store = c10::make_intrusive<c10d::HashStore>()};
  for (int64_t rank = 0; rank < 12; ++rank) {
    rendezvous.peers.push_back({"oak", "here", {4711 + rank, 1}});
  }
  const auto peers = std::make_shared<Peers>(0, std::move(rendezvous));
  EXPECT_EQ(
      peers->names({1, 11}),
      "rank 1 (process 4712 on oak), rank 11 (process 4722 on oak)");
  EXPECT_EQ(
      peers->names({1, 2, 3, 4, 5, 6, 7, 9, 11}),
      "ranks 1, 2, 3, 4, 5, 6, 7, 9, 11");
}

// Returns the milliseconds that the rank of the store takes to leave a world in
// which the other rank does not leave.
int64_t
time_to_leave(const Peer& peer, int port, std::chrono::milliseconds timeout) {
  Rendezvous rendezvous{
      .store = c10::make_intrusive<c10d::HashStore>(),
      .keeps_store = true,
      .store_port = port};
  rendezvous.peers = {{"oak", "here", this_process()}, peer};
  const auto peers = std::make_shared<Peers>(0, std::move(rendezvous));
  const auto begin = std::chrono::steady_clock::now();
  peers->leave(timeout);
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now() - begin)
      .count();
}

// Connection to 127.0.0.1 from another address, as of another host.
class RemoteConnection {
 public:
  RemoteConnection()
      : port_(free_port()),
        door_(listen_at("127.0.0.1", port_)),
        socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in from = address("127.0.0.2", 0);
    sockaddr_in to = address("127.0.0.1", port_);
    EXPECT_EQ(
        bind(socket_.get(), reinterpret_cast<sockaddr*>(&from), sizeof(from)),
        0);
    EXPECT_EQ(
        connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)),
        0);
  }
  int port() const {
    return port_;
  }

 private:
  static sockaddr_in address(const char* host, int port) {
    sockaddr_in result{};
    result.sin_family = AF_INET;
    result.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, host, &result.sin_addr);
    return result;
  }

  int port_;
  Descriptor door_;
  Descriptor socket_;
};

// The processes of another host are not visible, but their connections are.
TEST(Peers, OfAnotherHostStayWhileTheyAreConnected) {
  const Peer elsewhere{"elm", "there", {4711, 1}};
  constexpr auto kShort = std::chrono::milliseconds(400);
  constexpr auto kLong = std::chrono::seconds(60);
  const RemoteConnection connection;
  EXPECT_TRUE(has_remote_connections(connection.port()));
  EXPECT_GE(time_to_leave(elsewhere, connection.port(), kShort), 400);
  const int other = free_port();
  EXPECT_FALSE(has_remote_connections(other));
  EXPECT_LT(time_to_leave(elsewhere, other, kLong), 30'000);
}

TEST(Peers, AreNotAwaitedByTheStoreOnceTheyHaveEnded) {
  const Peer ended{"oak", "here", {getpid(), 1}}; // another process's start
  EXPECT_LT(time_to_leave(ended, 0, std::chrono::seconds(60)), 30'000);
  const Peer alive{"oak", "here", this_process()};
  EXPECT_GE(time_to_leave(alive, 0, std::chrono::milliseconds(400)), 400);
}

} // namespace TEST_SOURCE
