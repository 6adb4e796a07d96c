// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous redistribution gives the result of the synchronous one. The
// program may first use the result, the source, or neither.
#include <c10/core/InferenceMode.h>
#include <dtensor/redistribute/plan.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "support.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

const RedistributeOptions kAsync{.async_op = true};

std::vector<Placements> layouts_of(int64_t mesh_ndim) {
  std::vector<Placements> layouts;
  for (const auto& a : kKinds) {
    if (mesh_ndim == 1) {
      layouts.push_back({a});
      continue;
    }
    for (const auto& b : kKinds) {
      layouts.push_back({a, b});
    }
  }
  return layouts;
}

// Returns a tensor with shards too large to be sent inline.
at::Tensor large() {
  return counting({65, 34});
}

TEST(AsyncRedistribute, IsTheSynchronousOneForEveryPairOfLayouts) {
  on_meshes({{1}, {2}, {3}, {2, 2}}, [](const DeviceMesh& mesh) {
    for (const auto& full : {counting({5, 3}), large()}) {
      for (const auto& from : layouts_of(mesh.ndim())) {
        const auto source = placed(full, mesh, from);
        for (const auto& to : layouts_of(mesh.ndim())) {
          if (!can_redistribute(
                  DTensor(source).spec(),
                  DTensor(source).spec()->with_placements(to))) {
            continue;
          }
          Counter counter;
          const auto sync = redistribute(source, to);
          const auto collectives = counter.take();
          const auto async = redistribute(source, to, kAsync);
          EXPECT_EQ(counter.take(), collectives);
          EXPECT_EQ(spec_text(async), spec_text(sync));
          EXPECT_TRUE(at::equal(to_local(async), to_local(sync)))
              << spec_text(source) << " to " << spec_text(sync);
          EXPECT_EQ(to_local(async).strides(), to_local(sync).strides());
          EXPECT_EQ(counter.take(), ""); // waiting communicates nothing
        }
      }
    }
  });
}

TEST(AsyncRedistribute, HasTheGradientOfTheSynchronousOne) {
  on_meshes({{2}, {3}, {2, 2}}, [](const DeviceMesh& mesh) {
    const auto full = large();
    for (const auto& from : layouts_of(mesh.ndim())) {
      for (const auto& to : layouts_of(mesh.ndim())) {
        auto d = placed(full, mesh, from, true);
        if (!can_redistribute(
                DTensor(d).spec(), DTensor(d).spec()->with_placements(to))) {
          continue;
        }
        const auto loss = whole(redistribute(d, to, kAsync).pow(3).sum());
        const auto first =
            torch::autograd::grad({loss}, {d}, {}, true, /*create_graph=*/true);
        expect_same(whole(first[0]), 3 * full.pow(2));
        const auto second = torch::autograd::grad({whole(first[0].sum())}, {d});
        expect_same(whole(second[0]), 6 * full);
      }
    }
  });
}

// Rank 0 uses the result first, rank 1 only after other collectives.
TEST(AsyncRedistribute, IsWaitedForAtFirstUse) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = mesh_of({2});
    const auto source = placed(large(), mesh, {Partial()});
    const auto sum = redistribute(source, {Replicate()}, kAsync);
    EXPECT_EQ(sum.sizes(), at::IntArrayRef({65, 34}));
    EXPECT_EQ(sum.scalar_type(), at::kDouble);
    EXPECT_EQ(spec_text(sum), "f64[65, 34] on (a=2): R");
    if (rank == 0) {
      expect_same(to_local(sum), large());
    }
    const auto other = redistribute(source, {Shard(0)});
    expect_same(to_local(sum), large());
    expect_same(whole(other), large());
  });
}

// Rank 1 enters the collective after rank 0 has called is_pending().
TEST(AsyncRedistribute, IsPendingUntilItIsWaitedFor) {
  std::atomic<bool> has_asked = false;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = mesh_of({2});
    const auto source = placed(large(), mesh, {Partial()});
    for (int wait = 0; rank == 1 && !has_asked && wait < 1000; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const auto sum = redistribute(source, {Shard(0, 30)}, kAsync);
    EXPECT_TRUE(rank == 1 || is_pending(sum));
    has_asked = true;
    EXPECT_EQ(to_local(sum).size(0), rank == 0 ? 60 : 5);
    EXPECT_FALSE(is_pending(sum));
    EXPECT_FALSE(is_pending(source));
    EXPECT_FALSE(is_pending(redistribute(source, {Shard(0)})));
    EXPECT_FALSE(is_pending(large()));
    EXPECT_FALSE(is_pending({}));
  });
}

// Rank 1 starts after rank 0 has continued, so rank 0 cannot have waited.
TEST(AsyncRedistribute, IsNotAwaitedIfASumIsShardedByUnits) {
  std::atomic<bool> has_gone_on = false;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = mesh_of({2});
    const auto source = placed(large(), mesh, {Partial()});
    for (int wait = 0; rank == 1 && !has_gone_on && wait < 1000; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    Counter counter;
    const auto parts = redistribute(source, {Shard(0, 30)}, kAsync);
    EXPECT_EQ(counter.take(), "1 reduce_scatter");
    EXPECT_EQ(spec_text(parts), "f64[65, 34] on (a=2): S(0, u=60)");
    EXPECT_TRUE(rank == 0 || has_gone_on);
    has_gone_on = true;
    EXPECT_EQ(to_local(parts).size(0), rank == 0 ? 60 : 5);
    expect_same(whole(parts), large());
  });
}

using Use = std::function<at::Tensor(const DTensor&)>;

TEST(AsyncRedistribute, CanBeUsedInEveryWay) {
  const std::vector<Use> uses = {
      [](const DTensor& t) { return whole(t * 1); },
      [](const DTensor& t) { return whole(t.detach()); },
      [](const DTensor& t) {
        return whole(t.view({34, 65}).view({65, 34}));
      },
      [](const DTensor& t) { return whole(t.t()).t(); },
      [](const DTensor& t) { return whole(at::Tensor(t).add_(0)); },
      [](const DTensor& t) { return whole(at::Tensor(t).unsqueeze_(0))[0]; },
      [](const DTensor& t) {
        return whole(at::cat({t, t})).narrow(0, 0, 65);
      },
      [](const DTensor& t) { return whole(at::empty_like(t).copy_(t)); },
      [](const DTensor& t) { return t.to_local().clone(); },
      [](const DTensor& t) {
        return whole(t.redistribute({Shard(1)}, kAsync));
      },
      [](const DTensor& t) {
        return whole(redistribute(
            redistribute(
                t.redistribute({Shard(0)}, kAsync), {Shard(1)}, kAsync),
            {Replicate()},
            kAsync));
      },
      [](const DTensor& t) {
        auto parameter = at::zeros({1}, at::kDouble);
        parameter.set_data(t);
        return whole(parameter);
      },
      [](const DTensor& t) {
        std::ostringstream text;
        text << t;
        EXPECT_NE(text.str().find("2210"), std::string::npos) << text.str();
        return whole(t);
      }};
  run_ranks(2, [&] {
    const auto mesh = mesh_of({2});
    for (size_t i = 0; i < uses.size(); ++i) {
      SCOPED_TRACE(i);
      auto source = placed(large(), mesh, {Partial()});
      const auto sum = redistribute(std::move(source), {Replicate()}, kAsync);
      expect_same(uses[i](sum), large());
    }
  });
}

// The source may be written before the other ranks have read it.
TEST(AsyncRedistribute, TheSourceMayChangeAtOnce) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    for (const auto& from : {Partial(), Shard(0)}) {
      for (const auto& to : {Replicate(), Shard(1)}) {
        const auto part = part_of(large(), mesh, {from});
        auto source = DTensor::from_local(
            part, mesh, {from}, {.shape = large().sizes().vec()});
        const auto a = redistribute(source, {to}, kAsync);
        source.zero_();
        expect_same(whole(a), large());

        // The tensor is moved in, but its memory has other references.
        part.copy_(part_of(large(), mesh, {from}));
        const auto b = redistribute(std::move(source), {to}, kAsync);
        part.zero_();
        expect_same(whole(b), large());

        auto third = placed(large(), mesh, {from});
        const auto view = third.detach();
        const auto c = redistribute(std::move(third), {to}, kAsync);
        at::Tensor(view).zero_();
        expect_same(whole(c), large());
      }
    }
  });
}

// A source that is moved in is not copied, so its memory is freed only after
// use. The copy of any other source does not keep the source's memory alive.
TEST(AsyncRedistribute, ASourceThatIsMovedInIsReadInPlace) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    for (const bool moves : {true, false}) {
      for (const bool recorded : {true, false}) {
        auto leaf = placed(large(), mesh, {Partial()}, recorded);
        auto source = std::make_optional<DTensor>(leaf * 2);
        std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> memory;
        {
          const at::NoGradGuard no_grad;
          memory.emplace(source->to_local().storage().getWeakStorageImpl());
        }
        const auto sum = moves
            ? redistribute(std::move(*source), {Replicate()}, kAsync)
            : source->redistribute({Replicate()}, kAsync);
        source.reset();
        EXPECT_EQ(memory->expired(), !moves);
        expect_same(whole(sum), 2 * large());
        EXPECT_EQ(sum.requires_grad(), recorded);
      }
    }
  });
}

TEST(AsyncRedistribute, ASavedSourceIsKept) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    auto leaf = placed(large() / 1000, mesh, {Shard(0)}, true);
    DTensor source(leaf.exp()); // its gradient needs the result
    const auto all = redistribute(std::move(source), {Replicate()}, kAsync);
    whole(all).sum().backward();
    expect_same(whole(leaf.grad()), (large() / 1000).exp());
  });
}

TEST(AsyncRedistribute, IsAnInferenceTensorOnlyIfMadeInInferenceMode) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    for (const auto& from : {Partial(), Shard(0)}) {
      const auto source = placed(large(), mesh, {from});
      std::optional<DTensor> made;
      {
        const c10::InferenceMode inference;
        made = redistribute(source, {Replicate()}, kAsync);
      }
      EXPECT_TRUE(made->is_inference());
      EXPECT_TRUE(made->to_local().is_inference());
      expect_same(whole(*made), large());

      const auto normal = redistribute(source, {Replicate()}, kAsync);
      {
        const c10::InferenceMode inference;
        expect_same(to_local(normal), large());
      }
      EXPECT_FALSE(normal.is_inference());
      EXPECT_FALSE(to_local(normal).is_inference());
      auto leaf = at::ones({65, 34}, at::kDouble).requires_grad_();
      const DTensor other = DTensor::from_local(leaf, mesh, {Replicate()});
      DTensor(normal * other).to_local().sum().backward(); // saves `normal`
      expect_same(leaf.grad(), large());
    }
  });
}

TEST(AsyncRedistribute, CastsBeforeItCommunicates) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    auto d = placed(counting({4}, at::kFloat), mesh, {Shard(0)}, true);
    Counter counter;
    const auto out = redistribute(
        d, {Replicate()}, {.forward_dtype = at::kBFloat16, .async_op = true});
    EXPECT_EQ(counter.take_bytes(), 2 * 2);
    expect_same(to_local(out), counting({4}, at::kBFloat16));
    to_local(out, Placements{Partial()}).sum().backward();
    EXPECT_EQ(counter.take_bytes(), 4 * 4);
    expect_same(whole(d.grad()), at::full({4}, 2.0f));
  });
}

TEST(AsyncRedistribute, UnlikeTensorsAreAnErrorAtFirstUse) {
  std::string texts[2];
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = mesh_of({2});
    const auto local = at::ones({3 + rank, 2});
    const auto sum = redistribute(
        DTensor::from_local(local, mesh, {Partial()}), {Replicate()}, kAsync);
    texts[rank] = error_of<c10::ValueError>([&] { to_local(sum); });
    // The second use throws the same error.
    EXPECT_EQ(error_of<c10::ValueError>([&] { sum * 2; }), texts[rank]);
  });
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(
      texts[0],
      "[all_reduce] ranks of \"a\" disagree: rank 0 calls all_reduce of "
      "f32[3, 2] with sum; rank 1 calls all_reduce of f32[4, 2] with sum. Call "
      "the same collective with the same sizes on every rank.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
