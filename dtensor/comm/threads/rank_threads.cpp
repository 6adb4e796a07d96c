// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/threads/rank_threads_impl.h>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/processes/process_id_impl.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/comm/world_impl.h>
#include <dtensor/error.h>

#include <c10/util/ScopeExit.h>
#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <utility>

namespace dtensor::detail {
namespace {

int threads_per_rank(int64_t n, const RunRanksOptions& options) {
  if (options.intra_op_threads > 0) {
    return options.intra_op_threads;
  }
  return std::max(1, at::get_num_threads() / static_cast<int>(n));
}

void check_no_rank(const char* where) {
  DTENSOR_CHECK(
      !is_rank(),
      "[{}] called from rank {} of {}. Ranks cannot be nested: call this "
      "function outside of ranks.",
      where,
      get_rank(),
      get_world_size());
}

std::shared_ptr<ThreadHub> make_hub(
    const char* where,
    const LocalRanks& here,
    const RunRanksOptions& options) {
  DTENSOR_CHECK_VALUE(
      here.count >= 1,
      "[{}] the number of ranks must be positive: {}. Pass at least 1.",
      where,
      here.count);
  DTENSOR_CHECK_VALUE(
      here.count <= kMostThreadRanks && here.of <= kMostRanks,
      "[{}] too many ranks: {} in this process, {} in total. Pass at most {} "
      "per process and {} in total.",
      where,
      here.count,
      here.of,
      kMostThreadRanks,
      kMostRanks);
  check_no_rank(where);
  DTENSOR_CHECK_VALUE(
      options.timeout.count() > 0 && options.intra_op_threads >= 0,
      "[{}] the timeout must be positive and intra_op_threads not negative: {} "
      "ms and {}. Leave them out to get the defaults.",
      where,
      options.timeout.count(),
      options.intra_op_threads);
  return std::make_shared<ThreadHub>(here, options.timeout);
}

// Ends a child process that was forked inside a rank's function. The function's
// caller does not exist in the child, so the function cannot return.
[[noreturn]] void end_child(const RankFailure& failure) {
  int status = 0;
  try {
    throw_if_any_failed("run_ranks", {failure});
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    status = 1;
  }
  std::fflush(nullptr);
  _exit(status);
}

} // namespace

/// A function to run, and the caller's thread-local state for every rank.
struct RankThreads::Launch {
  at::ThreadLocalState state;
  int intra_op_threads;
  const std::function<void(int64_t)>& fn;
};

RankThreads::RankThreads(
    const char* where,
    const LocalRanks& here,
    const RunRanksOptions& options,
    const MakeRank& make_rank)
    : options_(options),
      memory_(options.keep_freed_memory),
      hub_(make_hub(where, here, options)),
      forks_(fork_count()) {
  for (int64_t i = 0; i < here.count; ++i) {
    Rank& mine = ranks_.emplace_back();
    mine.world = make_rank(hub_, here.first + i);
    if (options.own_generators) {
      mine.generator = copy_of_default_generator();
    }
  }
  try {
    for (Rank& rank : ranks_) {
      rank.thread = std::thread([this, &rank] { live(rank); });
    }
  } catch (const std::system_error& error) { // the system has no more threads
    end();
    DTENSOR_THROW(
        "[{}] cannot start {}: {}. Use fewer ranks, or raise the limit (ulimit "
        "-u).",
        where,
        pluralize(here.count, "thread"),
        error.code().message());
  }
}

bool RankThreads::is_fresh() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return launches_ == 0;
}

bool RankThreads::is_forked() const {
  return fork_count() != forks_;
}

RankThreads::~RankThreads() {
  end();
}

void RankThreads::end() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  launched_.notify_all();
  for (Rank& rank : ranks_) {
    if (rank.thread.joinable()) {
      rank.thread.join();
    }
    rank.world->end(); // if its thread never started
  }
}

void RankThreads::live(Rank& rank) {
  const WorldScope scope(rank.world);
  // Ends the world in its own thread, also after pthread_exit, because its
  // objects were created in this thread.
  const auto ended = c10::make_scope_exit([&] { rank.world->end(); });
  int64_t done = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    launched_.wait(lock, [&] { return ending_ || launches_ > done; });
    if (ending_) {
      break;
    }
    ++done;
    const Launch& launch = *launch_;
    lock.unlock();
    const auto did = c10::make_scope_exit([&] {
      lock.lock();
      if (--busy_ == 0) {
        done_.notify_one();
      }
    });
    run_in(rank, launch);
    if (is_forked()) {
      end_child(rank.failure);
    }
  }
}

// Stores every exception of the function in the rank's failure.
void RankThreads::run_in(Rank& rank, const Launch& launch) {
  const int64_t number = rank.world->rank();
  rank.failure = {};
  try {
    const RankThreadGuard guard;
    const at::ThreadLocalStateGuard caller_state(launch.state);
    // Keeps this rank's backward pass in this thread, on CUDA too.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    at::set_num_threads(launch.intra_op_threads);
    // LibTorch fills the cache under a lock of the whole process. A cast that
    // communicates would deadlock there, because it waits for ranks that wait
    // for the lock.
    at::autocast::set_autocast_cache_enabled(false);
    const RankGeneratorScope generator(rank.generator);
    launch.fn(number);
    hub_->end_rank(number, /*has_failed=*/false);
  } catch (const abi::__forced_unwind&) { // pthread_exit or cancellation
    rank.failure.error = std::make_exception_ptr(c10::Error(
        {__func__, __FILE__, uint32_t{__LINE__}},
        "the thread of this rank was terminated by pthread_exit. Return from "
        "the function instead."));
    hub_->end_rank(number, /*has_failed=*/true);
    throw; // must be rethrown
  } catch (...) {
    rank.failure.error = std::current_exception();
    rank.failure.place = hub_->place(number, rank.failure.error);
    hub_->end_rank(number, /*has_failed=*/true);
  }
}

void RankThreads::begin(const char* where) {
  DTENSOR_CHECK(
      !is_forked(),
      "[{}] these ranks are threads of the process that this one was forked "
      "from. Make Ranks in the child.",
      where);
  check_no_rank(where);
  const std::lock_guard<std::mutex> lock(mutex_);
  DTENSOR_CHECK(
      !failed_,
      "[{}] an earlier function failed, which terminated {}. Make new Ranks.",
      where,
      pluralize(size(), "rank"));
  DTENSOR_CHECK(
      !running_,
      "[{}] another thread's function is running on these ranks. Wait for it, "
      "or make Ranks for each thread.",
      where);
  running_ = true;
}

void RankThreads::work(const Launch& launch) {
  const ExitGuard running;
  hub_->begin_run();
  std::unique_lock<std::mutex> lock(mutex_);
  launch_ = &launch;
  ++launches_;
  busy_ = size();
  launched_.notify_all();
  done_.wait(lock, [&] { return busy_ == 0; });
}

std::vector<RankFailure> RankThreads::failures() {
  std::vector<RankFailure> all;
  for (Rank& rank : ranks_) {
    rank.failure.rank = rank.world->rank();
    rank.failure.caught = hub_->wait_error(rank.failure.rank);
    all.push_back(std::exchange(rank.failure, {}));
  }
  return all;
}

void RankThreads::run(
    const char* where,
    const std::function<void(int64_t)>& fn) {
  begin(where);
  const int callers_threads = at::get_num_threads();
  // In a forked child, LibTorch replaces its thread pool in the first call of
  // this function, without a lock. Ranks call it concurrently.
  at::set_num_threads(callers_threads);
  {
    const GeneratorSwap swap(options_.own_generators);
    work({at::ThreadLocalState(), threads_per_rank(size(), options_), fn});
  }
  // Restores the caller's value, because a rank's setting is also the default
  // of threads that start later.
  at::set_num_threads(callers_threads);
  const auto failures = this->failures();
  finish(std::ranges::any_of(
      failures, [](const auto& f) { return f.error != nullptr; }));
  throw_if_any_failed(where, failures);
}

void RankThreads::finish(bool failed) {
  if (failed) {
    end();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  running_ = false;
  failed_ = failed;
}

void RankThreads::take_over_generator() const {
  if (options_.own_generators) {
    set_default_generator(ranks_.front().generator);
  }
}

} // namespace dtensor::detail
