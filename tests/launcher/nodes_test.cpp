// SPDX-License-Identifier: BSD-3-Clause
// Jobs on several nodes; the nodes are launchers on this host.
#include <gmock/gmock.h>

#include <csignal>

#include "../free_port.h"
#include "launched.h"

namespace launcher {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

// Two launchers with two ranks each.
class Nodes : public testing::Test {
 protected:
  std::vector<std::string> on_node(
      int node,
      const std::string& script,
      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> options = {
        "--nnodes",
        "2",
        "--node-rank",
        std::to_string(node),
        "--rdzv",
        address_};
    options.insert(options.end(), more.begin(), more.end());
    return on_ranks(2, script, options);
  }

  const std::string address_ = "127.0.0.1:" + std::to_string(free_port());
};

const std::string kForever = "echo pid $$; exec sleep 1000";

// Waits for both ranks of the node.
void wait_until_up(Launched& job, int node) {
  job.wait_for("[" + std::to_string(2 * node) + "] pid");
  job.wait_for("[" + std::to_string(2 * node + 1) + "] pid");
}

void expect_nothing_left(const Launched& job) {
  EXPECT_EQ(job.values("pid ").size(), 2U) << job.err();
  EXPECT_TRUE(all_gone(job.values("pid "))) << job.out();
}

TEST_F(Nodes, AreOneJob) {
  const std::string script =
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK"
      " $GROUP_WORLD_SIZE; echo key $TORCHELASTIC_RUN_ID;"
      " exec " DTENSOR_STORE_RANK;
  Launched second(on_node(1, script));
  Launched first(on_node(0, script));
  EXPECT_EQ(first.finish(), 0) << first.err();
  EXPECT_EQ(second.finish(), 0) << second.err();
  EXPECT_THAT(
      first.lines(),
      testing::IsSupersetOf({"[0] 0 4 0 2 0 2", "[1] 1 4 1 2 0 2"}));
  EXPECT_THAT(
      second.lines(),
      testing::IsSupersetOf({"[2] 2 4 0 2 1 2", "[3] 3 4 1 2 1 2"}));
  EXPECT_THAT(first.values("met "), ElementsAre("4", "4"));
  EXPECT_THAT(second.values("met "), ElementsAre("4", "4"));
  const auto keys = first.values("key ");
  EXPECT_THAT(keys, ElementsAre(testing::SizeIs(32), keys.at(0)));
  EXPECT_EQ(second.values("key "), keys);
}

TEST_F(Nodes, FailTogether) {
  Launched first(on_node(0, kForever));
  wait_until_up(first, 0);
  Launched second(on_node(1, "[ $RANK = 3 ] && exit 7; " + kForever));
  EXPECT_EQ(first.finish(), 7);
  EXPECT_EQ(second.finish(), 7);
  const auto text = "[dtensor-run] rank 3 on " + host_name() +
      " exited with code 7. The other ranks were terminated.\n";
  EXPECT_EQ(first.err(), text);
  EXPECT_EQ(second.err(), text);
  expect_nothing_left(first);
}

TEST_F(Nodes, WaitForEachOther) {
  Launched first(on_node(0, "echo done"));
  Launched second(on_node(1, "sleep 0.5; exit 2"));
  EXPECT_EQ(first.finish(), 2);
  EXPECT_EQ(second.finish(), 2);
}

TEST_F(Nodes, StartAgainTogether) {
  const std::string script =
      "[ $TORCHELASTIC_RESTART_COUNT$RANK = 02 ] && kill -9 $$;"
      " exec " DTENSOR_STORE_RANK;
  Launched first(on_node(0, script, {"--max-restarts", "1"}));
  Launched second(on_node(1, script, {"--max-restarts", "1"}));
  EXPECT_EQ(first.finish(), 0) << first.err();
  EXPECT_EQ(second.finish(), 0) << second.err();
  EXPECT_THAT(first.values("met "), ElementsAre("4", "4"));
  EXPECT_THAT(second.values("met "), ElementsAre("4", "4"));
  EXPECT_EQ(
      first.err(),
      "[dtensor-run] rank 2 on " + host_name() +
          " was killed by signal 9 (Killed). The other ranks were terminated. "
          "Restart 1 of 1.\n");
}

TEST_F(Nodes, EndWithASignalToOne) {
  Launched first(on_node(0, kForever, {"--max-restarts", "1"}));
  Launched second(on_node(1, kForever, {"--max-restarts", "1"}));
  wait_until_up(first, 0);
  wait_until_up(second, 1);
  second.signal(SIGTERM);
  EXPECT_EQ(first.finish(), 128 + SIGTERM);
  EXPECT_EQ(second.finish(), 128 + SIGTERM);
  expect_nothing_left(first);
  expect_nothing_left(second);
}

TEST_F(Nodes, EndWithNode0) {
  Launched first(on_node(0, kForever));
  Launched second(on_node(1, kForever));
  wait_until_up(second, 1);
  first.signal(SIGKILL);
  EXPECT_EQ(second.finish(), 1);
  EXPECT_EQ(
      second.err(),
      "[dtensor-run] node 0 at " + address_ +
          " stopped responding. The ranks were terminated.\n");
  expect_nothing_left(second);
}

TEST_F(Nodes, EndWithALauncherThatIsKilled) {
  Launched first(on_node(0, kForever, {"--node-timeout", "2"}));
  Launched second(on_node(1, kForever, {"--node-timeout", "2"}));
  wait_until_up(first, 0);
  wait_until_up(second, 1);
  second.signal(SIGKILL);
  EXPECT_EQ(first.finish(), 1);
  EXPECT_EQ(
      first.err(),
      "[dtensor-run] the launcher of node 1 stopped responding. The ranks were "
      "terminated.\n");
  expect_nothing_left(first);
}

// The launcher of node 1 is found dead while the ranks of node 0 end slowly, so
// the outcome of this attempt is already decided.
TEST_F(Nodes, EndAfterARestartWithoutALauncher) {
  const std::string script =
      "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && trap 'sleep 4; exit' TERM;"
      " echo pid $$; sleep 1000 & wait";
  const std::vector<std::string> options = {
      "--node-timeout", "2", "--max-restarts", "1"};
  Launched first(on_node(0, script, options));
  Launched second(on_node(1, script, options));
  wait_until_up(first, 0);
  wait_until_up(second, 1);
  ::kill(std::stoi(first.values("[0] pid ").at(0)), SIGKILL);
  second.signal(SIGKILL);
  EXPECT_EQ(first.finish(), 1);
  EXPECT_EQ(
      first.err(),
      "[dtensor-run] rank 0 on " + host_name() +
          " was killed by signal 9 (Killed). The other ranks were terminated. "
          "Restart 1 of 1.\n"
          "[dtensor-run] the launcher of node 1 stopped responding. The ranks "
          "were terminated.\n");
  EXPECT_TRUE(all_gone(first.values("pid "))) << first.out();
}

TEST_F(Nodes, RefuseAnotherOfTheSameRank) {
  Launched first(on_node(0, kForever));
  Launched second(on_node(1, kForever));
  wait_until_up(second, 1);
  Launched third(on_node(1, kForever));
  EXPECT_EQ(third.finish(), 2);
  EXPECT_EQ(
      third.err(),
      "[dtensor-run] node 1 has already joined. Pass a different --node-rank "
      "on every node.\n");
}

TEST_F(Nodes, RefuseAnotherShape) {
  Launched first(on_node(0, kForever));
  Launched second(on_node(1, kForever, {"--max-restarts", "1"}));
  EXPECT_EQ(second.finish(), 2);
  EXPECT_EQ(
      second.err(),
      "[dtensor-run] options differ between nodes: -n 2 --nnodes 2 "
      "--max-restarts 0 on node 0, -n 2 --nnodes 2 --max-restarts 1 on node 1. "
      "Start all nodes with the same options.\n");
}

} // namespace
} // namespace launcher
