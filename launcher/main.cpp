// SPDX-License-Identifier: BSD-3-Clause
// dtensor-run: starts the ranks of a job without Python.
//
//   dtensor-run -n 4 PROGRAM ARGUMENTS...
//   dtensor-run -n 4 --nnodes 2 --node-rank 0 --rdzv HOST:PORT PROGRAM ...
//
// See docs/guides/launching.md.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <cstdio>
#include <random>

#include "attempt.h"
#include "store.h"

namespace launcher {
namespace {

std::string random_key() {
  std::random_device bits;
  return fmt::format(
      "{:08x}{:08x}{:08x}{:08x}", bits(), bits(), bits(), bits());
}

// Returns the job key, which node 0 draws. Throws UsageError on another node if
// its number is taken or its options differ from those of node 0.
std::string agree_on_key(const Options& options, Store& store) {
  const auto shape = fmt::format(
      "-n {} --nnodes {} --max-restarts {}",
      options.ranks,
      options.nodes,
      options.max_restarts);
  if (options.node == 0) {
    auto key = random_key();
    store.set("shape", shape);
    store.set("key", key);
    return key;
  }
  if (store.add(fmt::format("joined/{}", options.node), 1) > 1) {
    throw UsageError(fmt::format(
        "node {} has already joined. Pass a different --node-rank on every "
        "node.",
        options.node));
  }
  if (const auto first = store.get("shape"); first != shape) {
    throw UsageError(fmt::format(
        "options differ between nodes: {} on node 0, {} on node {}. Start all "
        "nodes with the same options.",
        first,
        shape,
        options.node));
  }
  return store.get("key");
}

// Runs the job with its restarts. Returns the exit code.
int run_attempts(const Job& job) {
  const int most = job.options.max_restarts;
  for (int attempt = 0;; ++attempt) {
    if (job.nodes != nullptr) {
      job.nodes->begin(attempt);
    }
    const auto outcome = Attempt(job, attempt).run();
    if (outcome.code == 0) {
      return 0;
    }
    const bool again = outcome.again && attempt < most;
    const auto restart =
        again ? fmt::format(" Restart {} of {}.", attempt + 1, most) : "";
    job.output.print(
        STDERR_FILENO,
        fmt::format("[dtensor-run] {}{}\n", outcome.text, restart));
    if (!again) {
      return outcome.code;
    }
  }
}

// Opens /dev/null as each closed standard stream. Otherwise another file would
// take its number and get the output of the ranks.
void open_standard_streams() {
  Fd fd;
  do {
    fd.release();
    fd = Fd(::open("/dev/null", O_RDWR));
  } while (fd.get() >= 0 && fd.get() <= STDERR_FILENO);
}

// Waits until the output is read, or until a signal. If a signal has ended the
// job, also gives up once the reader stalls. Returns the signal, or 0.
int wait_for_reader(Output& output, Signals& signals) {
  constexpr int kStalled = 1000; // ms
  const int timeout = signals.received() ? kStalled : -1;
  while (output.pending()) {
    std::vector<pollfd> polled = {{signals.fd(), POLLIN, 0}};
    output.append_to(polled);
    const int events = ::poll(polled.data(), polled.size(), timeout);
    output.pump();
    if (const auto received = signals.take(); !received.empty()) {
      return received.front();
    }
    if (events == 0) {
      break;
    }
  }
  return 0;
}

int run(const Options& options) {
  open_standard_streams();
  Guard guard; // must precede all threads, because it forks
  const auto store = options.node == 0
      ? Store::serve(options.host, options.port)
      : Store::join(
            options.host,
            options.port,
            std::chrono::seconds(options.join_timeout));
  const auto key = agree_on_key(options, *store);
  // A signal before this point simply ends the launcher, because no ranks are
  // running yet.
  Signals signals;
  Output output;
  std::optional<Nodes> nodes;
  if (options.nodes > 1) {
    nodes.emplace(
        store,
        options.node,
        options.nodes,
        std::chrono::seconds(options.node_timeout));
  }
  const auto cores = share_cores(options.ranks);
  const Job job = {
      options,
      guard,
      signals,
      output,
      nodes ? &*nodes : nullptr,
      cores,
      {key, store->host(), store->port(), cores.threads}};
  const int code = run_attempts(job);
  nodes.reset(); // the other nodes need not wait for the reader
  const int signal = wait_for_reader(output, signals);
  return code == 0 && signal != 0 ? 128 + signal : code;
}

} // namespace
} // namespace launcher

int main(int argc, char** argv) {
  try {
    return launcher::run(launcher::parse_options(argc, argv));
  } catch (const launcher::UsageError& error) {
    std::fprintf(stderr, "[dtensor-run] %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[dtensor-run] %s.\n", error.what());
    return 1;
  }
}
