// SPDX-License-Identifier: BSD-3-Clause
// Plans cost as much as the best path of an independent exhaustive search. The
// search does not use the notion of a last sharding, but compares the elements
// of every rank.
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/plan.h>
#include <tests/redistribute/layouts.h>

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <set>

namespace dtensor {
namespace TEST_SOURCE {

using dtensor::testing::all_layouts;
using dtensor::testing::all_pairs;
using dtensor::testing::Pair;
using dtensor::testing::some_pairs;

TEST(Cost, OfAPlan) {
  const SpecPtr from = parse_spec("f32[8, 6] on (tp=2): P(sum)").spec();
  const auto cost = [&](const Placement& to) {
    return redistribute_cost(from, from->with_placements({to}));
  };
  EXPECT_DOUBLE_EQ(
      cost(Replicate()), wire_bytes(CollectiveKind::kAllReduce, 2, 8 * 6 * 4));
  EXPECT_DOUBLE_EQ(
      cost(Shard(1)), wire_bytes(CollectiveKind::kReduceScatter, 2, 8 * 6 * 4));
  EXPECT_DOUBLE_EQ(cost(Partial("sum")), 0);
  EXPECT_EQ(cost(Partial("min")), std::numeric_limits<double>::infinity());
}

TEST(Cost, CountsTheLargestPart) {
  // The shards have 2, 2 and 1 elements.
  const SpecPtr from = parse_spec("f64[5] on (tp=3): S(0)").spec(2);
  EXPECT_DOUBLE_EQ(
      redistribute_cost(from, from->with_placements({Replicate()})),
      wire_bytes(CollectiveKind::kAllGather, 3, 5 * 8));
}

using Cost = std::pair<int64_t, int64_t>; // wire bytes times 36, collectives

class Exhaustive {
 public:
  Exhaustive(Sizes sizes, std::vector<int64_t> shape)
      : sizes_(std::move(sizes)),
        mesh_(at::kCPU, shape, [&] {
          std::vector<int64_t> ranks(static_cast<size_t>(numel(shape)));
          std::iota(ranks.begin(), ranks.end(), 0);
          return ranks;
        }()) {}

  SpecPtr spec(const Placements& placements) const {
    return Spec::make(mesh_, placements, sizes_, at::kFloat);
  }

  /// Returns the placements in normalized form.
  Placements stored(const Placements& placements) const {
    return Placements(spec(placements)->placements());
  }

  Cost best(const Placements& from, const Placements& to) {
    std::map<std::string, Cost> costs;
    std::set<std::tuple<Cost, std::string>> open;
    std::map<std::string, Placements> layouts;
    const auto reach = [&](const Placements& at, Cost cost) {
      const std::string name = to_string(PlacementsRef(at));
      const auto [entry, is_new] = costs.try_emplace(name, cost);
      if (is_new || cost < entry->second) {
        entry->second = cost;
        layouts[name] = at;
        open.insert({cost, name});
      }
    };
    reach(from, {0, 0});
    while (!open.empty()) {
      const auto [cost, name] = *open.begin();
      open.erase(open.begin());
      const Placements at = layouts[name];
      if (at == to) {
        return cost;
      }
      for (size_t i = 0; i < at.size(); ++i) {
        for (const Placement& next : choices(i, at[i], from, to)) {
          if (const auto step = cost_of(at, i, next)) {
            Placements after = at;
            after[i] = next;
            reach(
                after, {cost.first + step->first, cost.second + step->second});
          }
        }
      }
    }
    ADD_FAILURE() << "no path";
    return {};
  }

 private:
  // Returns the placements that plan.h allows next: unchanged dimensions stay,
  // and P occurs only at the end.
  std::vector<Placement> choices(
      size_t i,
      const Placement& at,
      const Placements& from,
      const Placements& to) const {
    if ((from[i] == to[i] && !from[i].is_sharded()) ||
        (at.is_partial() && at == to[i])) {
      return {};
    }
    std::vector<Placement> all{Replicate(), to[i]};
    if (!at.is_replicate() || to[i].is_sharded()) {
      for (int64_t dim = 0; dim < 2; ++dim) {
        all.push_back(Shard(dim));
        const int64_t size = sizes_[static_cast<size_t>(dim)];
        for (const int64_t parts : parts_on_the_right(i, from, to)) {
          if (size % (parts * mesh_.shape()[i]) == 0) {
            all.push_back(StridedShard(dim, parts));
          }
        }
      }
      if (from[i].is_sharded()) {
        all.push_back(from[i]);
      }
    }
    std::erase(all, at);
    return all;
  }

  // Returns the possible numbers of shards of a tensor dimension over the mesh
  // dims right of `i` that may change.
  std::set<int64_t> parts_on_the_right(
      size_t i,
      const Placements& from,
      const Placements& to) const {
    std::set<int64_t> products{1};
    for (size_t j = i + 1; j < from.size(); ++j) {
      if (from[j] == to[j] && !from[j].is_sharded()) {
        continue;
      }
      for (const int64_t parts : std::set<int64_t>(products)) {
        products.insert(parts * mesh_.shape()[j]);
      }
    }
    products.erase(1);
    return products;
  }

  // True if the sharding on mesh dim `i` is the last of its dimension. Shards
  // left of other shards count as applied after them only if all of them
  // together shard the dimension evenly.
  bool is_last(const Placements& placements, size_t i) {
    const int64_t dim = placements[i].dim();
    int64_t all_parts = 1;
    bool rightmost = true;
    for (size_t j = 0; j < placements.size(); ++j) {
      if (placements[j].is_sharded(dim)) {
        all_parts *= mesh_.shape()[j];
        rightmost &= j <= i;
      }
    }
    if (rightmost) {
      return true;
    }
    return sizes_[static_cast<size_t>(dim)] % all_parts == 0 &&
        complete(placements, i);
  }

  std::optional<Cost>
  cost_of(const Placements& before, size_t i, const Placement& next) {
    const Placement& p = before[i];
    Placements after = before;
    after[i] = next;
    if ((p.is_sharded() && !is_last(before, i)) ||
        (next.is_sharded() && !is_last(after, i))) {
      return std::nullopt;
    }
    const int64_t n = mesh_.size(static_cast<int64_t>(i));
    if (p.is_replicate() || next.is_partial()) {
      return Cost{0, 0};
    }
    if (p.is_partial() && next.is_strided_shard() && !equal_parts(after, i)) {
      return std::nullopt; // reduce_scatter returns torch.chunk shards
    }
    if (p.is_partial()) {
      const double full = bytes(before);
      return next.is_replicate()
          ? paid(wire_bytes(CollectiveKind::kAllReduce, n, full))
          : paid(wire_bytes(CollectiveKind::kReduceScatter, n, full));
    }
    return next.is_replicate()
        ? paid(wire_bytes(CollectiveKind::kAllGather, n, bytes(after)))
        : paid(wire_bytes(CollectiveKind::kAllToAll, n, bytes(before)));
  }

  static Cost paid(double bytes) {
    return {std::llround(bytes * 36), 1};
  }

  double bytes(const Placements& placements) const {
    const Sizes origin(placements.size(), 0);
    return 4 *
        static_cast<double>(
               numel(local_sizes(sizes_, mesh_.shape(), placements, origin)));
  }

  // True if the shards along mesh dim `i` together are the elements that a rank
  // holds if `i` is R, for every rank.
  bool complete(const Placements& placements, size_t i) {
    const std::string key =
        to_string(PlacementsRef(placements)) + std::to_string(i);
    const auto [entry, is_new] = complete_.try_emplace(key, true);
    if (is_new) {
      entry->second = compute_complete(placements, i);
    }
    return entry->second;
  }

  bool compute_complete(const Placements& placements, size_t i) const {
    Placements whole = placements;
    whole[i] = Replicate();
    for (int64_t index = 0; index < mesh_.size(); ++index) {
      auto coordinate = mesh_.coordinate_of(index);
      std::set<int64_t> parts;
      const auto held = elements(whole, placements[i].dim(), coordinate);
      for (int64_t r = 0; r < mesh_.shape()[i]; ++r) {
        coordinate[i] = r;
        parts.merge(elements(placements, placements[i].dim(), coordinate));
      }
      if (parts != held) {
        return false;
      }
    }
    return true;
  }

  // True if mesh dim `i` shards equal sizes into equal shards on all ranks.
  bool equal_parts(const Placements& placements, size_t i) const {
    Placements whole = placements;
    whole[i] = Replicate();
    const int64_t dim = placements[i].dim();
    const auto ranks = static_cast<size_t>(mesh_.shape()[i]);
    const size_t size = elements(whole, dim, mesh_.coordinate_of(0)).size();
    for (int64_t index = 0; index < mesh_.size(); ++index) {
      const auto at = mesh_.coordinate_of(index);
      if (elements(whole, dim, at).size() != size ||
          elements(placements, dim, at).size() * ranks != size) {
        return false;
      }
    }
    return true;
  }

  std::set<int64_t> elements(
      const Placements& placements,
      int64_t dim,
      const std::vector<int64_t>& coordinate) const {
    std::set<int64_t> elements;
    for (const Interval& interval : local_intervals(
             sizes_[static_cast<size_t>(dim)],
             dim,
             mesh_.shape(),
             placements,
             coordinate)) {
      for (int64_t x = interval.begin; x < interval.end; ++x) {
        elements.insert(x);
      }
    }
    return elements;
  }

  Sizes sizes_;
  DeviceMesh mesh_;
  std::map<std::string, bool> complete_;
};

size_t changes(const Pair& pair) {
  size_t count = 0;
  for (size_t i = 0; i < pair.from.size(); ++i) {
    count += pair.from[i] == pair.to[i] ? 0 : 1;
  }
  return count;
}

void expect_cheapest(
    const Sizes& sizes,
    const std::vector<int64_t>& shape,
    const std::vector<Pair>& pairs) {
  Exhaustive search(sizes, shape);
  for (const Pair& given : pairs) {
    const Pair pair{search.stored(given.from), search.stored(given.to)};
    const auto found = plan(search.spec(pair.from), search.spec(pair.to));
    if (changes(pair) == 1 && found->steps.size() == 1) {
      continue; // plan() takes the single step
    }
    const auto [wire, collectives] = search.best(pair.from, pair.to);
    const std::string text = to_string(*search.spec(pair.from)) + " to " +
        to_string(PlacementsRef(pair.to)) + "\n" +
        to_string(*found, search.spec(pair.from)->mesh());
    EXPECT_EQ(std::llround(found->wire_bytes * 36), wire) << text;
    EXPECT_EQ(found->collectives(), collectives) << text;
  }
}

std::vector<Placement> kinds(int64_t split_factor) {
  return {
      Replicate(),
      Shard(0),
      Shard(1),
      Partial("sum"),
      StridedShard(0, split_factor)};
}

TEST(Cost, PlansAreCheapestOnTwoByTwo) {
  for (const Sizes& sizes : {Sizes{4, 8}, Sizes{12, 2}, Sizes{5, 7}}) {
    expect_cheapest(sizes, {2, 2}, all_pairs(all_layouts(2, kinds(2))));
  }
}

// Plans are cheapest for layouts with units mixed with plain shards.
TEST(Cost, PlansAreCheapestInUnits) {
  const std::vector<Placement> kinds = {
      Replicate(), Shard(0), Shard(1), Partial("sum"), Shard(0, 3)};
  for (const Sizes& sizes : {Sizes{9, 4}, Sizes{15, 2}}) {
    expect_cheapest(sizes, {2, 2}, all_pairs(all_layouts(2, kinds)));
  }
}

TEST(Cost, PlansAreCheapestOnTwoByThree) {
  for (const Sizes& sizes : {Sizes{12, 6}, Sizes{5, 7}}) {
    expect_cheapest(sizes, {2, 3}, all_pairs(all_layouts(2, kinds(3))));
  }
}

TEST(Cost, PlansAreCheapestOnThreeDims) {
  expect_cheapest(
      {8, 16}, {2, 2, 2}, some_pairs(all_layouts(3, kinds(2)), 400));
  expect_cheapest({8, 9}, {2, 3, 2}, some_pairs(all_layouts(3, kinds(2)), 200));
}

} // namespace TEST_SOURCE
} // namespace dtensor
