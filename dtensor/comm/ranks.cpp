// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/failure_report_impl.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/comm/rank_memory_impl.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/comm/thread_group_impl.h>
#include <dtensor/error.h>

#include <algorithm>
#include <set>
#include <thread>

namespace dtensor {
namespace {

using detail::RankContext;
using detail::RankFailure;
using detail::ThreadWorld;

/// What every rank takes over from the thread that calls run_ranks.
struct Launch {
  at::ThreadLocalState state;
  int intra_op_threads;
  const std::function<void(int64_t)>& fn;
};

int threads_per_rank(int64_t n, const RunRanksOptions& options) {
  if (options.intra_op_threads > 0) {
    return options.intra_op_threads;
  }
  return std::max(1, at::get_num_threads() / static_cast<int>(n));
}

void run_rank(RankContext& context, const Launch& launch) {
  const at::ThreadLocalStateGuard caller_state(launch.state);
  // A backward of this rank stays in this thread, on CUDA too.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  at::set_num_threads(launch.intra_op_threads);
  // LibTorch fills the cache under a lock of the whole process, and a cast that
  // communicates would wait there for ranks that wait for the lock.
  at::autocast::set_autocast_cache_enabled(false);
  detail::set_current_rank(&context);
  const detail::RankGeneratorScope generator;
  launch.fn(context.rank);
}

// The rank's thread: everything that it throws ends up in `failure`.
void rank_main(
    RankContext& context,
    const Launch& launch,
    RankFailure& failure) {
  ThreadWorld& world = *context.world;
  try {
    run_rank(context, launch);
    world.rank_returned(context.rank);
  } catch (...) {
    failure.error = std::current_exception();
    failure.place = world.place(context.rank, failure.error);
    world.rank_failed(context.rank);
  }
  detail::set_current_rank(nullptr);
}

void check_members(const std::vector<int64_t>& ranks) {
  const int64_t rank = get_rank();
  const int64_t world_size = get_world_size();
  std::set<int64_t> seen;
  for (int64_t member : ranks) {
    DTENSOR_CHECK_VALUE(
        member >= 0 && member < world_size,
        "new_group",
        "no rank ",
        member,
        " in a world of ",
        world_size,
        ". Use ranks from 0 to ",
        world_size - 1,
        ".");
    DTENSOR_CHECK_VALUE(
        seen.insert(member).second,
        "new_group",
        "rank ",
        member,
        " is named twice. Name every rank once.");
  }
  DTENSOR_CHECK_VALUE(
      seen.count(rank) == 1,
      "new_group",
      "the calling rank ",
      rank,
      " is not among the members [",
      c10::Join(", ", ranks),
      "]. Call it on the members only.");
}

} // namespace

void run_ranks(
    int64_t n,
    const std::function<void(int64_t)>& fn,
    const RunRanksOptions& options) {
  DTENSOR_CHECK_VALUE(
      n >= 1,
      "run_ranks",
      "the number of ranks must be positive: ",
      n,
      ". Pass at least 1.");
  DTENSOR_CHECK(
      detail::current_rank() == nullptr,
      "run_ranks",
      "called from rank ",
      get_rank(),
      " of ",
      get_world_size(),
      ". Ranks cannot be nested: call it outside of them.");
  DTENSOR_CHECK_VALUE(
      options.timeout.count() > 0 && options.intra_op_threads >= 0,
      "run_ranks",
      "the timeout must be positive and intra_op_threads not negative: ",
      options.timeout.count(),
      " ms and ",
      options.intra_op_threads,
      ". Leave them out to get the defaults.");
  detail::keep_freed_memory();
  const int callers_threads = at::get_num_threads();
  detail::CallerGenerator generator(n);
  const auto world = std::make_shared<ThreadWorld>(n, options.timeout);
  const Launch launch{at::ThreadLocalState(), threads_per_rank(n, options), fn};
  std::vector<RankContext> contexts(static_cast<size_t>(n));
  std::vector<std::shared_ptr<detail::Owner>> owners;
  std::vector<RankFailure> failures(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < n; ++rank) {
    const auto i = static_cast<size_t>(rank);
    owners.push_back(
        std::make_shared<detail::Owner>(rank, world.get()));
    contexts[i] = {world, rank, owners[i], generator.of_rank(rank)};
    try {
      threads.emplace_back(
          [&launch, &context = contexts[i], &failure = failures[i]] {
            rank_main(context, launch, failure);
          });
    } catch (...) { // no more threads: end the ranks that wait for this one
      failures[i].error = std::current_exception();
      world->rank_failed(rank);
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& owner : owners) {
    owner->has_ended = true;
  }
  // What a rank sets is also the default of threads started later.
  at::set_num_threads(callers_threads);
  for (int64_t rank = 0; rank < n; ++rank) {
    failures[static_cast<size_t>(rank)].caught = world->gave_up(rank);
  }
  detail::throw_if_any_failed(failures);
  generator.take_over(0);
}

void run_ranks(
    int64_t n,
    const std::function<void()>& fn,
    const RunRanksOptions& options) {
  run_ranks(
      n, [&fn](int64_t) { fn(); }, options);
}

int64_t get_rank() {
  const RankContext* context = detail::current_rank();
  return context ? context->rank : 0;
}

int64_t get_world_size() {
  const RankContext* context = detail::current_rank();
  return context ? context->world->size() : 1;
}

GroupPtr new_group(
    const std::vector<int64_t>& ranks,
    const std::string& label) {
  check_members(ranks);
  const auto me = std::find(ranks.begin(), ranks.end(), get_rank());
  const RankContext* context = detail::current_rank();
  if (context != nullptr && context->make_group) {
    return context->make_group(ranks, me - ranks.begin(), label);
  }
  return std::make_shared<detail::ThreadGroup>(
      ranks,
      me - ranks.begin(),
      label,
      ranks.size() > 1 ? context->world : nullptr);
}

} // namespace dtensor
