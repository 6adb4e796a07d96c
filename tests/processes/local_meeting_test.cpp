// SPDX-License-Identifier: BSD-3-Clause
// Rendezvous of ranks of one host by a local name. Also errors if the name
// belongs to another process, or if the process with this name is silent or
// sends garbage.
#include <dtensor/comm/processes/open_store_impl.h>
#include <dtensor/comm/processes/sockets_impl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout(500);
// Time allowed beyond the timeout on a busy machine.
constexpr std::chrono::seconds kSlack(15);

detail::Deadline soon() {
  return Clock::now() + kTimeout;
}

// Returns the error of `fn`, and checks that it is thrown in time.
template <typename Fn>
std::string error_in_time(const Fn& fn) {
  const auto begin = Clock::now();
  const auto text = test_text::error_of(fn);
  EXPECT_LT(Clock::now() - begin, kTimeout + kSlack);
  return text;
}

std::string local_name(const std::string& end) {
  return "dtensor test/" + std::to_string(getpid()) + "/" + end;
}

TEST(LocalMeeting, GivesEachRankTheJobsPort) {
  const auto name = local_name("three");
  auto one = std::async(std::launch::async, [&] {
    return detail::fetch_port(name, 1, Clock::now() + kSlack);
  });
  auto two = std::async(std::launch::async, [&] {
    return detail::fetch_port(name, 2, Clock::now() + kSlack);
  });
  detail::hand_out_port(name, 4711, 3, Clock::now() + kSlack);
  EXPECT_EQ(one.get(), 4711);
  EXPECT_EQ(two.get(), 4711);
}

// Names longer than a socket name (107 bytes) stay distinct.
TEST(LocalMeeting, KeepsLongNamesApart) {
  const auto prefix = local_name(std::string(200, 'x'));
  auto one = std::async(std::launch::async, [&] {
    return detail::fetch_port(prefix + "one", 1, Clock::now() + kSlack);
  });
  auto two = std::async(std::launch::async, [&] {
    return detail::fetch_port(prefix + "two", 1, Clock::now() + kSlack);
  });
  auto first = std::async(std::launch::async, [&] {
    detail::hand_out_port(prefix + "one", 1001, 2, Clock::now() + kSlack);
  });
  detail::hand_out_port(prefix + "two", 1002, 2, Clock::now() + kSlack);
  first.get();
  EXPECT_EQ(one.get(), 1001);
  EXPECT_EQ(two.get(), 1002);
}

// Requests the port as rank `rank` in a child process. Returns the child's pid.
pid_t ask_in_child(const std::string& name, int64_t rank) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      detail::fetch_port(name, rank, Clock::now() + kSlack);
    } catch (const std::exception&) {
      _exit(1);
    }
    _exit(0);
  }
  return child;
}

int status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(LocalMeeting, GivesNoRanksPortToAnother) {
  const auto name = local_name("twice");
  auto desk = std::async(std::launch::async, [&] {
    detail::hand_out_port(name, 4711, 3, Clock::now() + kSlack);
  });
  EXPECT_EQ(status_of(ask_in_child(name, 1)), 0);
  // Another process with the same rank, and ranks that do not exist, are
  // refused.
  EXPECT_EQ(status_of(ask_in_child(name, 1)), 1);
  EXPECT_EQ(status_of(ask_in_child(name, 0)), 1);
  EXPECT_EQ(status_of(ask_in_child(name, 3)), 1);
  EXPECT_EQ(status_of(ask_in_child(name, -1)), 1);
  EXPECT_EQ(status_of(ask_in_child(name, 2)), 0);
  desk.get();
}

TEST(LocalMeeting, NamesMissingRanks) {
  const auto name = local_name("alone");
  auto one = std::async(std::launch::async, [&] {
    return detail::fetch_port(name, 1, Clock::now() + kSlack);
  });
  EXPECT_EQ(
      error_in_time([&] {
        detail::hand_out_port(name, 4711, 4, Clock::now() + 2 * kTimeout);
      }),
      "[init_process_group] ranks 2, 3 of 4 ranks of this host did not join in "
      "time. Check that they are running; if they were started separately, set "
      "MASTER_ADDR and MASTER_PORT.");
  EXPECT_EQ(one.get(), 4711);
}

socklen_t set_address(sockaddr_un& address, const std::string& name) {
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(
      offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// Connects to a local name, once a process listens there.
detail::Descriptor visit(const std::string& name) {
  detail::Descriptor visitor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  const auto length = set_address(address, name);
  for (int tries = 0; tries < 1000 &&
       connect(
           visitor.get(),
           reinterpret_cast<const sockaddr*>(&address),
           length) != 0;
       ++tries) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  return visitor;
}

// Socket at a local name, with behaviour that the test controls.
class LocalServer {
 public:
  LocalServer(const std::string& name, int backlog)
      : door_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    const auto length = set_address(address, name);
    EXPECT_EQ(
        bind(door_.get(), reinterpret_cast<const sockaddr*>(&address), length),
        0);
    EXPECT_EQ(listen(door_.get(), backlog), 0);
  }
  int door() const {
    return door_.get();
  }

 private:
  detail::Descriptor door_;
};

TEST(LocalMeeting, AtASilentSocketEndsInTime) {
  const auto name = local_name("silent");
  const LocalServer server(name, 8);
  EXPECT_EQ(
      error_in_time([&] { detail::fetch_port(name, 1, soon()); }),
      "[init_process_group] rank 0 was not found on this host in time: "
      "process " +
          std::to_string(getpid()) +
          " listens at its local name but does not answer. Check that it is "
          "running; if ranks were started separately or on several hosts, set "
          "MASTER_ADDR and MASTER_PORT.");
}

TEST(LocalMeeting, AtASocketWithoutRoomEndsInTime) {
  const auto name = local_name("full");
  const LocalServer server(name, 0);
  std::vector<std::future<std::string>> waiting;
  for (int i = 0; i < 3; ++i) { // the backlog admits one connection more
    waiting.push_back(std::async(std::launch::async, [&] {
      return test_text::error_of([&] { detail::fetch_port(name, 1, soon()); });
    }));
  }
  bool found_no_room = false;
  for (auto& one : waiting) {
    const auto text = one.get();
    EXPECT_THAT(text, HasSubstr("rank 0 was not found on this host in time"));
    found_no_room |= text.find("accepts no more connections") < text.size();
  }
  EXPECT_TRUE(found_no_room);
}

TEST(LocalMeeting, WithGarbageIsNamed) {
  const auto name = local_name("garbage");
  const LocalServer server(name, 8);
  std::thread answer([&] {
    const detail::Descriptor one(accept(server.door(), nullptr, nullptr));
    static_cast<void>(!send(one.get(), "\xff\x1b[2Jx", 6, MSG_NOSIGNAL));
  });
  EXPECT_THAT(
      error_in_time([&] { detail::fetch_port(name, 1, soon()); }),
      HasSubstr("rank 0 of this host sent an invalid store port: \""));
  answer.join();
}

TEST(LocalMeeting, AtATakenNameIsNamed) {
  const auto name = local_name("taken");
  const LocalServer server(name, 8);
  EXPECT_EQ(
      error_in_time([&] { detail::hand_out_port(name, 1, 2, soon()); }),
      "[init_process_group] rank 0 cannot listen at the local name \"" + name +
          "\": Address already in use. Stop the job that uses the name, or set "
          "MASTER_ADDR and MASTER_PORT.");
}

// A process without free descriptors cannot accept a rank.
TEST(LocalMeeting, WithoutDescriptorsEndsInTime) {
  const auto name = local_name("descriptors");
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(kSlack.count()));
    const int next = dup(STDERR_FILENO); // the lowest free descriptor
    close(next);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = static_cast<rlim_t>(next) + 1; // for the socket alone
    setrlimit(RLIMIT_NOFILE, &limit);
    const auto text = test_text::error_of(
        [&] { detail::hand_out_port(name, 4711, 2, soon()); });
    _exit(text.find("did not join in time") < text.size() ? 0 : 1);
  }
  EXPECT_THAT(
      error_in_time([&] { detail::fetch_port(name, 1, soon()); }),
      HasSubstr("rank 0 was not found on this host in time"));
  EXPECT_EQ(status_of(child), 0);
}

TEST(LocalMeeting, IsNotHeldByVisitorsThatSayNothing) {
  const auto name = local_name("visitors");
  std::vector<detail::Descriptor> visitors;
  auto desk = std::async(std::launch::async, [&] {
    detail::hand_out_port(name, 4711, 2, Clock::now() + kSlack);
  });
  for (int i = 0; i < 20; ++i) {
    visitors.push_back(visit(name));
  }
  EXPECT_EQ(detail::fetch_port(name, 1, Clock::now() + kSlack), 4711);
  desk.get();
}

TEST(LocalMeeting, DropsTheOldestOfVeryManyVisitors) {
  const auto name = local_name("many");
  auto desk = std::async(std::launch::async, [&] {
    detail::hand_out_port(name, 4711, 2, Clock::now() + kSlack);
  });
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(kSlack.count()));
    const auto oldest = visit(name);
    std::vector<detail::Descriptor> others;
    for (int i = 0; i < 512; ++i) {
      others.push_back(visit(name));
    }
    char byte = 0;
    _exit(read(oldest.get(), &byte, 1) == 0 ? 0 : 1); // closed
  }
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(detail::fetch_port(name, 1, Clock::now() + kSlack), 4711);
  desk.get();
}

TEST(LocalMeeting, WithAnotherUserIsRefused) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "needs root, to run as another user";
  }
  const auto name = local_name("user");
  std::array<int, 2> ready{};
  ASSERT_EQ(pipe(ready.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) == 0) {
      const LocalServer server(name, 1000);
      static_cast<void>(!write(ready[1], "r", 1));
      alarm(static_cast<unsigned>(kSlack.count()));
      pause();
    }
    _exit(1);
  }
  close(ready[1]);
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  EXPECT_THAT(
      error_in_time([&] { detail::fetch_port(name, 1, soon()); }),
      HasSubstr(
          "rank 0 was not found on this host in time: process " +
          std::to_string(child) + " of user 65534 uses its local name. "));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

} // namespace TEST_SOURCE
} // namespace dtensor
