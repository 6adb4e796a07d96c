// SPDX-License-Identifier: BSD-3-Clause
// Errors of a rank, and their timing, if its peer is silent, sends garbage,
// belongs to another job, or does not exist.
#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/processes/greeting_impl.h>
#include <dtensor/comm/processes/sockets_impl.h>
#include <dtensor/comm/world.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>
#include <tests/free_port.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout(500);
// Time allowed beyond the timeout, for the diagnosis on a busy machine.
constexpr std::chrono::seconds kSlack(15);

// Returns the error of `fn`, and checks that it is thrown in time.
template <typename Fn>
std::string error_in_time(const Fn& fn) {
  const auto begin = Clock::now();
  const auto text = test_text::error_of(fn);
  EXPECT_LT(Clock::now() - begin, kTimeout + kSlack);
  EXPECT_FALSE(is_initialized());
  destroy_process_group();
  return text;
}

std::string error_at(
    const std::string& init_method,
    int64_t rank,
    milliseconds timeout = kTimeout) {
  return error_in_time([&] {
    init_process_group(
        {.init_method = init_method,
         .rank = rank,
         .world_size = 2,
         .timeout = timeout});
  });
}

// Server that listens at a port and handles each connection with `serve`.
class Server {
 public:
  explicit Server(std::function<void(int)> serve)
      : port_(free_port()),
        door_(detail::listen_at("127.0.0.1", port_)),
        thread_([this, serve = std::move(serve)] { run(serve); }) {}
  ~Server() {
    stop_ = true;
    shutdown(door_.get(), SHUT_RDWR);
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::string address() const {
    return "127.0.0.1:" + std::to_string(port_);
  }

 private:
  void run(const std::function<void(int)>& serve) {
    while (!stop_) {
      connections_.emplace_back(accept(door_.get(), nullptr, nullptr));
      if (connections_.back().get() >= 0) {
        serve(connections_.back().get());
      }
    }
  }

  std::atomic<bool> stop_{false};
  int port_;
  detail::Descriptor door_;
  std::vector<detail::Descriptor> connections_;
  std::thread thread_;
};

TEST(HostilePeers, ASilentListener) {
  const Server server([](int) {});
  EXPECT_THAT(
      error_at("tcp://" + server.address(), 1),
      AllOf(
          HasSubstr("[init_process_group] the store at " + server.address()),
          HasSubstr(" did not answer within")));
}

// Expects an error at once: the timeout is longer than the limit of the suite.
void expect_foreign(
    const std::function<void(int)>& serve,
    const std::string& answer) {
  const Server server(serve);
  EXPECT_EQ(
      error_at("tcp://" + server.address(), 1, std::chrono::minutes(30)),
      "[init_process_group] the service at " + server.address() +
          " is not the store of a job: it answers \"" + answer +
          "\". Set MASTER_ADDR and MASTER_PORT to an address of rank 0's host "
          "and a free port.");
}

void send_all(int connection, const std::string& text) {
  static_cast<void>(!send(connection, text.data(), text.size(), MSG_NOSIGNAL));
}

TEST(HostilePeers, AListenerWithAnotherProtocol) {
  using namespace std::string_literals;
  const std::vector<std::pair<std::string, std::string>> services = {
      {"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n",
       "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3??"},
      {"220 oak ESMTP\r\n", "220 oak ESMTP??"},
      {std::string(4096, '\0'), std::string(40, '?')},
      {std::string(4096, 'x'), std::string(40, 'x')},
      {"\0\0\0\0"s, "????"}};
  for (const auto& service : services) {
    expect_foreign(
        [&](int connection) { send_all(connection, service.first); },
        service.second);
  }
}

// Services of this kind speak after the client.
TEST(HostilePeers, AListenerThatAnswersInAnotherProtocol) {
  expect_foreign(
      [](int connection) {
        std::array<char, 4> request{};
        static_cast<void>(!recv(connection, request.data(), 4, 0));
        send_all(connection, "HTTP/1.1 400 Bad Request\r\n\r\n");
      },
      "HTTP/1.1 400 Bad Request????");
  expect_foreign(
      [](int connection) {
        std::array<char, 10> request{};
        const auto count = recv(connection, request.data(), 10, 0);
        send_all(connection, {request.data(), static_cast<size_t>(count)});
      },
      "?\xce\xf7\x85<????\xd7");
}

// Servers of text protocols answer after a line, or after a line and an empty
// line.
TEST(HostilePeers, AListenerThatAnswersLines) {
  for (const std::string end : {"\n", "\r\n\r\n"}) {
    expect_foreign(
        [&](int connection) {
          std::string text;
          char next = 0;
          while (text.find(end) == std::string::npos &&
                 recv(connection, &next, 1, 0) == 1) {
            text += next;
          }
          send_all(connection, "HTTP/1.0 400 Bad Request\r\n\r\n");
        },
        "HTTP/1.0 400 Bad Request????");
  }
}

TEST(StoreRequest, IsAnsweredByItsNumber) {
  const auto request = detail::store_request();
  const std::string number(request.data() + 6, 4);
  for (size_t size = 0; size <= 4; ++size) {
    EXPECT_TRUE(detail::begins_store_answer(number.substr(0, size)));
  }
  EXPECT_FALSE(detail::begins_store_answer(number + "x"));
  EXPECT_FALSE(detail::begins_store_answer("x"));
}

TEST(HostilePeers, AListenerThatClosesConnections) {
  const Server server([](int connection) { shutdown(connection, SHUT_RDWR); });
  EXPECT_THAT(
      error_at("tcp://" + server.address(), 1),
      AllOf(HasSubstr("[init_process_group]"), HasSubstr(server.address())));
}

std::string unreachable_store(
    const std::string& address,
    const std::string& why) {
  return "[init_process_group] the store at " + address +
      " cannot be reached: " + why +
      ". Check that the process that hosts it, rank 0 or the launcher, is "
      "running, and that MASTER_ADDR and MASTER_PORT are those of this job.";
}

// TCP connects to no broadcast address.
TEST(HostilePeers, AnAddressThatIsNoHosts) {
  EXPECT_EQ(
      error_at("tcp://255.255.255.255:29500", 1),
      unreachable_store("255.255.255.255:29500", "Network is unreachable"));
}

// The name has a longer label than the name service allows.
TEST(HostilePeers, AnUnknownHost) {
  const auto host = std::string(70, 'h') + ".invalid";
  EXPECT_THAT(
      error_at("tcp://" + host + ":29500", 1),
      ::testing::AnyOf(
          unreachable_store(host + ":29500", gai_strerror(EAI_NONAME)),
          unreachable_store(host + ":29500", gai_strerror(EAI_AGAIN)),
          unreachable_store(host + ":29500", gai_strerror(EAI_FAIL))));
  EXPECT_THAT(
      error_at("tcp://" + host + ":29500", 0),
      HasSubstr("[init_process_group] cannot resolve host \"" + host + "\": "));
}

// The system completes no connection while the queue of a listener is full.
TEST(HostilePeers, AListenerWithAFullQueue) {
  const int port = free_port();
  const detail::Descriptor door(detail::listen_at("127.0.0.1", port));
  ASSERT_EQ(listen(door.get(), 0), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<in_port_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<detail::Descriptor> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    static_cast<void>(connect(
        waiting.back().get(),
        reinterpret_cast<sockaddr*>(&address),
        sizeof(address)));
  }
  const auto name = "127.0.0.1:" + std::to_string(port);
  EXPECT_EQ(
      error_at("tcp://" + name, 1),
      unreachable_store(name, "Connection timed out"));
}

TEST(HostilePeers, APortThatIsInUse) {
  const Server server([](int) {});
  EXPECT_THAT(
      error_at("tcp://" + server.address(), 0),
      HasSubstr(
          "[init_process_group] rank 0 cannot listen at " + server.address() +
          ": Address already in use. Set MASTER_ADDR to an address of rank 0's "
          "host and MASTER_PORT to a free port."));
}

TEST(HostilePeers, InvalidAddresses) {
  for (const std::string address :
       {"h:99999",
        "h:65536",
        "h:0",
        "h:-1",
        "h:",
        "h",
        ":80",
        "h:80x",
        "h: 80",
        "h:80/",
        "h:80?rank=0",
        "[]:80",
        ""}) {
    EXPECT_EQ(
        test_text::error_of<c10::ValueError>([&] {
          init_process_group(
              {.init_method = "tcp://" + address, .rank = 0, .world_size = 2});
        }),
        "[init_process_group] no host and port in \"tcp://" + address +
            "\". Write tcp://host:port, with a port from 1 to 65535.");
  }
  using Address = std::pair<std::string, int>;
  EXPECT_EQ(detail::parse_address("[::1]:80"), Address("::1", 80));
  EXPECT_EQ(detail::parse_address("oak:65535"), Address("oak", 65535));
}

TEST(HostilePeers, LongAddresses) {
  const std::string host(100'000, 'h');
  for (const int64_t rank : {0, 1}) {
    EXPECT_EQ(
        error_at("tcp://" + host + ":80", rank),
        "[init_process_group] the host name \"" + std::string(80, 'h') +
            "...\" has 100000 bytes, more than the maximum of 255. Set "
            "MASTER_ADDR to the name or address of rank 0's host.");
  }
}

TEST(HostilePeers, InvalidTimeouts) {
  for (const int64_t count : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    for (const int64_t size : {1, 2}) {
      EXPECT_EQ(
          test_text::error_of<c10::ValueError>([&] {
            init_process_group(
                {.init_method = "tcp://127.0.0.1:1",
                 .rank = size - 1,
                 .world_size = size,
                 .timeout = milliseconds(count)});
          }),
          "[init_process_group] the timeout must be positive: " +
              std::to_string(count) +
              " ms. Leave it out for the default of 30 minutes.");
    }
  }
}

TEST(HostilePeers, LongestPossibleTimeouts) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(
      test_text::error_of([&] {
        init_process_group(
            {.init_method = "tcp://127.0.0.1:" + std::to_string(free_port()),
             .rank = 0,
             .world_size = 1,
             .timeout = milliseconds::max()});
      }),
      "nothing was thrown");
  destroy_process_group();
}

// Fixture with a folder for rendezvous files.
class MeetingFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
        ("dtensor_meeting_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    fs::remove_all(folder_);
  }
  std::string path() const {
    return (folder_ / "file").string();
  }
  std::string error() const {
    return error_at("file://" + path(), 1);
  }
  void write(const std::string& content) const {
    std::ofstream(path()) << content;
  }

  fs::path folder_;
};

TEST_F(MeetingFile, InAMissingFolder) {
  EXPECT_EQ(
      error_at("file:///no/such/folder/file", 0),
      "[init_process_group] folder \"/no/such/folder\" of "
      "\"file:///no/such/folder/file\" does not exist. Create it, or use a "
      "file in another folder.");
}

TEST_F(MeetingFile, WithoutAName) {
  for (const std::string method : {"file://", "file:///tmp/"}) {
    EXPECT_EQ(
        error_at(method, 0),
        "[init_process_group] \"" + method +
            "\" names no file. Use \"file:///path\".");
  }
}

// LibTorch would try to create the file until the timeout.
TEST_F(MeetingFile, ThatIsALinkToAMissingFile) {
  fs::create_symlink("/no/such/folder/file", path());
  EXPECT_EQ(
      error(),
      "[init_process_group] \"" + path() +
          "\" is a link to a file that does not exist. Use the name of the "
          "file.");
}

TEST_F(MeetingFile, ThatIsAFifo) {
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(
      error(),
      "[init_process_group] \"" + path() +
          "\" is not a regular file. Use a file that does not exist yet.");
}

TEST_F(MeetingFile, ThatIsAFolderOrADevice) {
  EXPECT_THAT(
      error_at("file://" + folder_.string(), 0),
      HasSubstr(" is not a regular file."));
  EXPECT_THAT(
      error_at("file:///dev/null", 0), HasSubstr(" is not a regular file."));
  EXPECT_THAT(
      error_at("file:///dev/zero", 0), HasSubstr(" is not a regular file."));
}

TEST_F(MeetingFile, WithOtherContent) {
  const std::string huge(
      "\xff\xff\xff\x7f"
      "key",
      7);
  for (const std::string& content :
       {std::string("some text of another program"),
        std::string("abc"),
        huge,
        std::string("\1\0\0\0k", 5)}) {
    write(content);
    EXPECT_THAT(
        error(),
        HasSubstr(
            "[init_process_group] the file \"" + path() +
            "\" is not a FileStore file: "));
  }
}

TEST_F(MeetingFile, LockedByAnotherProcess) {
  write("");
  const detail::Descriptor file(::open(path().c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(file.get(), LOCK_EX), 0);
  EXPECT_EQ(
      error(),
      "[init_process_group] another process has locked the file \"" + path() +
          "\". Stop that process, or give the job another file.");
}

TEST_F(MeetingFile, WithoutOtherRanks) {
  EXPECT_THAT(
      error(),
      HasSubstr("[init_process_group] rank 0 of 2 did not join within 0.5 s."));
}

// The file of an earlier job that failed is detected. The job runs in children,
// because sessions are counted per process.
TEST_F(MeetingFile, OfAnEarlierJob) {
  const auto error_of_child = [&] {
    const auto out = folder_ / "out";
    const pid_t child = fork();
    if (child == 0) {
      std::ofstream(out) << error();
      _exit(0);
    }
    waitpid(child, nullptr, 0);
    std::ifstream file(out);
    return std::pair(
        child, std::string(std::istreambuf_iterator<char>(file), {}));
  };
  const auto [first, missing] = error_of_child();
  EXPECT_THAT(missing, HasSubstr("rank 0 of 2 did not join within"));
  const auto [second, taken] = error_of_child();
  EXPECT_THAT(
      taken,
      AllOf(
          HasSubstr(
              "[init_process_group] rank 1 is already registered by process " +
              std::to_string(first) + " on "),
          HasSubstr(
              ", which has ended. Start each rank once, and give each job its "
              "own address, or its own file that does not exist yet.")));
}

// Returns the error of rank 1 at a store in which a rank 1 has already
// registered. The store contains the keys of many sessions, because the session
// number depends on earlier tests.
std::string seat_taken_by(const std::string& greeting) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  for (int session = 0; session < 200; ++session) {
    const auto keys = "dtensor/0/" + std::to_string(session);
    store->add(keys + "/seat/1", 1);
    if (!greeting.empty()) {
      store->set(
          keys + "/rank/1",
          std::vector<uint8_t>(greeting.begin(), greeting.end()));
    }
  }
  return error_in_time([&] {
    init_process_group(
        {.backend = "shm",
         .rank = 1,
         .world_size = 2,
         .store = store,
         .timeout = kTimeout});
  });
}

TEST(SecondJob, AtTheSameStoreIsRefused) {
  detail::LaunchEnv env;
  env.rank = 1;
  env.size = 2;
  detail::Peer peer;
  peer.host_name = "oak";
  peer.host = "another host";
  peer.process = {4711, 1};
  constexpr const char* kAdvice =
      ". Start each rank once, and give each job its own address, or its own "
      "file that does not exist yet.";
  EXPECT_EQ(
      seat_taken_by(detail::greeting(env, peer)),
      std::string("[init_process_group] rank 1 is already registered by "
                  "process 4711 on oak") +
          kAdvice);
  EXPECT_EQ(
      seat_taken_by(""),
      std::string("[init_process_group] rank 1 is already registered by "
                  "another process") +
          kAdvice);
}

TEST(Greeting, IsReadAsItWasWritten) {
  detail::LaunchEnv env;
  env.job = "blue";
  env.size = 4;
  detail::Peer peer;
  peer.host_name = "oak";
  peer.host = "here";
  peer.process = {4711, 12};
  const auto text = detail::greeting(env, peer);
  const auto read = detail::check_greeting(text, text, 3);
  EXPECT_EQ(read.host_name, "oak");
  EXPECT_EQ(read.host, "here");
  EXPECT_EQ(read.process.pid, 4711);
  EXPECT_EQ(read.process.started, 12);
}

TEST(Greeting, WithoutAProcessIsRefused) {
  detail::LaunchEnv env;
  env.size = 4;
  const auto whole = detail::greeting(env, {"oak", "here", {4711, 12}});
  for (const std::string end :
       {"", "x 1\n", "-1 1\n", "0 1\n", "99999999999999999999 1\n", "1\n"}) {
    const auto text = whole.substr(0, whole.find("4711")) + end;
    EXPECT_EQ(
        test_text::error_of([&] { detail::check_greeting(text, whole, 3); }),
        "[init_process_group] cannot read the first message of rank 3. Start "
        "all ranks of one job, and no other job at its address.")
        << end;
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
