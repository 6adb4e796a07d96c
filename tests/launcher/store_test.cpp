// SPDX-License-Identifier: BSD-3-Clause
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "launched.h"

namespace launcher {
namespace {

using testing::ElementsAre;

// Returns the addresses, in the format of /proc/net/tcp, at which a socket
// listens to this port.
std::vector<std::string> listening_at(int port) {
  std::vector<std::string> found;
  for (const auto* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line); // skip the heading
    while (std::getline(in, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state;
      fields >> number >> local >> remote >> state;
      const auto colon = local.find(':');
      if (state == "0A" &&
          std::stoi(local.substr(colon + 1), nullptr, 16) == port) {
        found.push_back(local.substr(0, colon));
      }
    }
  }
  return found;
}

void send_to(int port, const std::string& bytes) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(
      ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(
      ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
      static_cast<ssize_t>(bytes.size()));
  ::close(fd);
}

TEST(Store, IsWhereRanksMeet) {
  Launched job({"-n", "3", DTENSOR_STORE_RANK});
  EXPECT_EQ(job.finish(), 0) << job.err();
  EXPECT_THAT(job.values("met "), ElementsAre("3", "3", "3"));
}

TEST(Store, OutlivesRanks) {
  Launched job(on_ranks(
      2,
      "[ $TORCHELASTIC_RESTART_COUNT$RANK = 00 ] && kill -9 $$;"
      " exec " DTENSOR_STORE_RANK,
      {"--max-restarts", "1"}));
  EXPECT_EQ(job.finish(), 0) << job.err();
  EXPECT_THAT(job.values("met "), ElementsAre("2", "2"));
}

TEST(Store, ListensOnLoopbackAlone) {
  Launched job(on_ranks(1, "echo port $MASTER_PORT.; exec sleep 1000"));
  job.wait_for(".");
  const auto ports = job.values("port ");
  ASSERT_EQ(ports.size(), 1U);
  EXPECT_THAT(listening_at(std::stoi(ports[0])), ElementsAre("0100007F"));
}

// Waiting for a listener that accepts connections but never answers ends at the
// timeout.
TEST(Store, IsNotAwaitedBeyondTheTimeout) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(fd, generic, size), 0);
  ASSERT_EQ(::listen(fd, 8), 0);
  ASSERT_EQ(::getsockname(fd, generic, &size), 0);
  const auto where = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const auto begin = std::chrono::steady_clock::now();
  Launched job(
      {"-n",
       "1",
       "--nnodes",
       "2",
       "--node-rank",
       "1",
       "--rdzv",
       where,
       "--join-timeout",
       "1",
       "true"});
  EXPECT_EQ(job.finish(), 2);
  EXPECT_EQ(
      job.err(),
      "[dtensor-run] node 0 does not answer at " + where +
          ". Start dtensor-run there with --node-rank 0 and the same --rdzv."
          "\n");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  ::close(fd);
}

TEST(Store, OutlivesStrangers) {
  std::string folder = testing::TempDir() + "launcher_test_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  Launched job(on_ranks(
      2,
      "echo port $MASTER_PORT.; while [ ! -e " + folder +
          "/go ]; do sleep 0.05; done; exec " DTENSOR_STORE_RANK));
  job.wait_for(".");
  const int port = std::stoi(job.values("port ").at(0));
  send_to(port, "GET / HTTP/1.1\r\n\r\n");
  send_to(port, std::string(100000, '\xff'));
  send_to(port, "");
  std::ofstream(folder + "/go") << "go\n";
  EXPECT_EQ(job.finish(), 0) << job.err();
  EXPECT_THAT(job.values("met "), ElementsAre("2", "2"));
  ::remove((folder + "/go").c_str());
  ::rmdir(folder.c_str());
}

} // namespace
} // namespace launcher
