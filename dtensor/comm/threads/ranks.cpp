// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/ranks.h>

#include <dtensor/comm/threads/rank_threads_impl.h>

namespace dtensor {

Ranks::Ranks(int64_t n, const RunRanksOptions& options)
    : threads_(std::make_unique<detail::RankThreads>(
          "Ranks",
          "set of Ranks",
          n,
          options)) {}

Ranks::~Ranks() = default;

void Ranks::run(const std::function<void()>& fn) {
  run([&fn](int64_t) { fn(); });
}

void Ranks::run(const std::function<void(int64_t)>& fn) {
  threads_->run("Ranks::run", fn);
}

int64_t Ranks::size() const {
  return threads_->size();
}

void run_ranks(
    int64_t n,
    const std::function<void(int64_t)>& fn,
    const RunRanksOptions& options) {
  constexpr const char* kWhere = "run_ranks";
  detail::RankThreads ranks(kWhere, kWhere, n, options);
  ranks.run(kWhere, fn);
  ranks.take_over_generator();
}

void run_ranks(
    int64_t n,
    const std::function<void()>& fn,
    const RunRanksOptions& options) {
  run_ranks(
      n, [&fn](int64_t) { fn(); }, options);
}

} // namespace dtensor
