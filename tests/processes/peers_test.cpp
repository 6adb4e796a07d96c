// SPDX-License-Identifier: BSD-3-Clause
// The ranks for which a failing rank waits before it returns. Instead of
// measuring time, the tests count the requests of the rank to the store.
#include <dtensor/comm/processes/peers_impl.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
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

} // namespace TEST_SOURCE
