// SPDX-License-Identifier: BSD-3-Clause
// Admission of ranks to a world, and the time that the others wait for them.
#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/processes/open_store_impl.h>
#include <dtensor/version.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace TEST_SOURCE {

using namespace dtensor;
using ::testing::HasSubstr;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

const std::string kVersion = c10::str(
    "dtensor ",
    DTENSOR_VERSION_MAJOR,
    ".",
    DTENSOR_VERSION_MINOR,
    ".",
    DTENSOR_VERSION_PATCH);
const std::string kWhere = "\noak\nhere\n4711 1\n";

// Returns the error of rank 0 of two if rank 1 sends this greeting. The store
// contains the keys of many sessions, because the session number depends on
// earlier tests.
std::string told_to(const std::string& greeting) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  for (int session = 0; session < 100; ++session) {
    const auto keys = "dtensor/0/" + std::to_string(session);
    store->set(
        keys + "/rank/1",
        std::vector<uint8_t>(greeting.begin(), greeting.end()));
    store->add(keys + "/left", 1); // rank 0 need not wait for it to leave
  }
  const auto text = test_text::error_of([&] {
    init_process_group(
        {.backend = "shm",
         .rank = 0,
         .world_size = 2,
         .store = store,
         .timeout = std::chrono::seconds(20)});
  });
  destroy_process_group();
  return text;
}

std::string refusal(const std::string& theirs, const std::string& mine) {
  return "[init_process_group] process claiming rank 1 belongs to another job "
         "or version: \"" +
      theirs + "\", expected \"" + mine +
      "\". Start all ranks of one job with the same version of dtensor, and no "
      "other job at its address.";
}

TEST(Rendezvous, RefusesAnotherVersion) {
  EXPECT_EQ(
      told_to("dtensor 9.8.7\njob \n2 ranks" + kWhere),
      refusal("dtensor 9.8.7", kVersion));
}

TEST(Rendezvous, RefusesAnotherJob) {
  EXPECT_EQ(
      told_to(kVersion + "\njob 17\n2 ranks" + kWhere),
      refusal("job 17", "job "));
}

TEST(Rendezvous, RefusesAWorldOfAnotherSize) {
  EXPECT_EQ(
      told_to(kVersion + "\njob \n3 ranks" + kWhere),
      refusal("3 ranks", "2 ranks"));
}

// Errors quote only the beginning of a line of an invalid greeting.
TEST(Rendezvous, RejectsMalformedGreetings) {
  EXPECT_EQ(told_to(""), refusal("", kVersion));
  EXPECT_EQ(
      told_to("GET / HTTP/1.1\r\n"), refusal("GET / HTTP/1.1?", kVersion));
  EXPECT_EQ(
      told_to(std::string(100'000, 'x')),
      refusal(std::string(80, 'x'), kVersion));
}

TEST(Rendezvous, AcceptsARankOfItsJob) {
  EXPECT_EQ(
      told_to(kVersion + "\njob \n2 ranks" + kWhere), "nothing was thrown");
}

// Returns the error of rank 1 if no other rank comes.
std::string error_alone(const StorePtr& store, int64_t size) {
  return test_text::error_of([&] {
    init_process_group(
        {.backend = "shm",
         .rank = 1,
         .world_size = size,
         .store = store,
         .timeout = std::chrono::milliseconds(50)});
  });
}

TEST(Rendezvous, NamesTheFirstOfManyMissingRanks) {
  const std::string advice =
      " did not join within 0.05 s. Check that they are running and can reach "
      "rank 0's host.";
  EXPECT_EQ(
      error_alone(c10::make_intrusive<c10d::HashStore>(), 3),
      "[init_process_group] ranks 0, 2 of 3" + advice);
  EXPECT_EQ(
      error_alone(c10::make_intrusive<c10d::HashStore>(), 20),
      "[init_process_group] ranks 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, "
      "14, 15, 16 and perhaps more of 20" +
          advice);
}

// A store that is lost while ranks wait for each other.
class LostStore final : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>&) override {
    TORCH_CHECK(false, "Connection reset by peer");
  }
};

TEST(Rendezvous, NamesALostStore) {
  EXPECT_EQ(
      error_alone(c10::make_intrusive<LostStore>(), 2),
      "[init_process_group] the store cannot be reached any more: the process "
      "that hosted it, rank 0 or the launcher, has ended. Check its output.");
}

TEST(Rendezvous, DescribesItsStore) {
  dtensor::detail::LaunchEnv env;
  const auto text = [&](const ProcessGroupOptions& options) {
    return dtensor::detail::store_text(env, options);
  };
  EXPECT_EQ(text({}), "the store of rank 0 on this host");
  env.master_addr = "oak";
  env.master_port = 29500;
  EXPECT_EQ(text({}), "the store at oak:29500");
  EXPECT_EQ(text({.init_method = "tcp://elm:80"}), "the store at elm:80");
  EXPECT_EQ(text({.init_method = "file:///tmp/x"}), "the file /tmp/x");
  EXPECT_EQ(
      text({.store = c10::make_intrusive<c10d::HashStore>()}),
      "the store that the program passed");
}

TEST(Rendezvous, WaitsAsLongAsPythonByDefault) {
  EXPECT_EQ(ProcessGroupOptions().timeout, std::chrono::minutes(30));
  EXPECT_EQ(ProcessGroupOptions().timeout, kBackendDefaultTimeout);
}

using FileEntries = std::vector<std::pair<std::string, std::string>>;

// Writes a file as c10d::FileStore does. Returns true if the file is removed
// like the file of three finished ranks.
bool is_removed(const FileEntries& entries, const std::string& end = "") {
  const auto path =
      ::testing::TempDir() + "dtensor_meeting_" + std::to_string(::getpid());
  {
    std::ofstream file(path, std::ios::binary);
    const auto put = [&](const std::string& text) {
      const auto length = static_cast<uint32_t>(text.size());
      file.write(reinterpret_cast<const char*>(&length), sizeof(length));
      file << text;
    };
    for (const auto& [key, value] : entries) {
      put(key);
      put(value);
    }
    file << end;
  }
  dtensor::detail::remove_finished_meeting_file(path, 3);
  return !std::filesystem::remove(path);
}

// If ranks 1 and 2 of a FileStore end together, its last two entries may be
// those of rank 2, which counted itself as finished before rank 1 did.
TEST(Rendezvous, RemovesTheFileOfRanksThatEndTogether) {
  const FileEntries ended = {
      {"refcount/", "3"},
      {"/dtensor", "some value"},
      {"cleanup/", "1"},
      {"refcount/", "2"},
      {"cleanup/", "2"},
      {"cleanup/", "3"},
      {"refcount/", "1"},
      {"refcount/", "0"}};
  EXPECT_TRUE(is_removed(ended));
  EXPECT_FALSE(is_removed({ended.begin(), ended.end() - 1})); // one is open
  EXPECT_FALSE(is_removed({{"refcount/", "0"}, {"cleanup/", "2"}}));
  EXPECT_FALSE(is_removed(ended, "no entry"));
  EXPECT_FALSE(is_removed({}));
}

TEST(Rendezvous, LeavesAFileThatAnotherProcessHasLocked) {
  const auto path =
      ::testing::TempDir() + "dtensor_locked_" + std::to_string(::getpid());
  std::ofstream(path) << "";
  const dtensor::detail::Descriptor file(
      ::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(file.get(), LOCK_EX), 0);
  dtensor::detail::remove_finished_meeting_file(path, 3);
  EXPECT_TRUE(std::filesystem::remove(path));
}

} // namespace TEST_SOURCE
