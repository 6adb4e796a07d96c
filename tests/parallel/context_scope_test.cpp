// SPDX-License-Identifier: BSD-3-Clause
// The scope itself: assignment of tokens, replacement of buffers, behaviour
// outside of the scope, and errors.
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/parallel/attention/attention_tokens_impl.h>
#include <dtensor/parallel/autocast.h>
#include <tests/error_of.h>
#include <tests/parallel/attention_cases.h>
#include <tests/parallel/comm_counts.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
using detail::AttentionPiece;
using detail::pieces_of;
using detail::tokens_of_ranks;
using test_text::error_of;

TEST(AttentionTokens, AreHeadAndTail) {
  EXPECT_EQ(
      tokens_of_ranks(8, 2, true),
      (detail::TokensOfRanks{{{0, 2}, {6, 8}}, {{2, 6}}}));
  EXPECT_EQ(
      tokens_of_ranks(12, 3, true),
      (detail::TokensOfRanks{{{0, 2}, {10, 12}}, {{2, 4}, {8, 10}}, {{4, 8}}}));
  EXPECT_EQ(
      tokens_of_ranks(8, 2, false),
      (detail::TokensOfRanks{{{0, 4}}, {{4, 8}}}));
}

// Every rank has as many tokens as with torch.chunk, and every token has a
// rank.
TEST(AttentionTokens, AreChunksOfAnyLength) {
  for (int64_t ranks = 1; ranks < 6; ++ranks) {
    for (int64_t length = 0; length < 30; ++length) {
      for (const bool balanced : {false, true}) {
        const auto tokens = tokens_of_ranks(length, ranks, balanced);
        std::vector<int64_t> all = detail::order_of(tokens);
        std::sort(all.begin(), all.end());
        std::vector<int64_t> expected(static_cast<size_t>(length));
        std::iota(expected.begin(), expected.end(), 0);
        EXPECT_EQ(all, expected);
        for (int64_t rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(
              total_size(tokens[static_cast<size_t>(rank)]),
              chunk(length, ranks, rank).size());
        }
      }
    }
  }
}

// With balanced shards all ranks compute the same number of causal pairs.
TEST(AttentionTokens, AreAsMuchWorkForAllRanks) {
  const auto tokens = tokens_of_ranks(1024, 4, true);
  std::vector<int64_t> pairs;
  for (const auto& mine : tokens) {
    pairs.push_back(0);
    for (const auto& position : detail::order_of({mine})) {
      pairs.back() += position + 1;
    }
  }
  EXPECT_EQ(pairs, std::vector<int64_t>(4, pairs[0]));
}

// Pieces cover exactly the causal pairs. Here, the pairs are derived from the
// positions.
TEST(AttentionTokens, SeeWhatTheirPositionsSay) {
  for (int64_t length = 1; length < 14; ++length) {
    for (const bool balanced : {false, true}) {
      for (const int64_t key_length : {length, length + 3, length / 2}) {
        const auto queries = tokens_of_ranks(length, 3, balanced);
        const auto keys = tokens_of_ranks(key_length, 3, balanced);
        for (const auto& q : queries) {
          for (const auto& k : keys) {
            const auto rows = detail::order_of({q});
            const int64_t rows_at_once = length % 4 + 1;
            const auto columns = detail::order_of({k});
            std::map<std::pair<int64_t, int64_t>, int> seen;
            for (const auto& piece : pieces_of(q, k, true, rows_at_once)) {
              EXPECT_GT(piece.queries.size() * piece.keys.size(), 0);
              for (int64_t i = 0; i < piece.queries.size(); ++i) {
                for (int64_t j = 0; j < piece.keys.size(); ++j) {
                  seen[{
                      rows[static_cast<size_t>(piece.queries.begin + i)],
                      columns[static_cast<size_t>(piece.keys.begin + j)]}] +=
                      !piece.causal || j <= i;
                }
              }
            }
            for (const auto row : rows) {
              for (const auto column : columns) {
                EXPECT_EQ((seen[{row, column}]), column <= row);
              }
            }
          }
        }
      }
    }
  }
}

// A rank computes one piece per block.
TEST(AttentionTokens, MakeFewPieces) {
  const auto tokens = tokens_of_ranks(24, 3, true);
  EXPECT_EQ(
      pieces_of(tokens[1], tokens[1], true, 8),
      (std::vector<AttentionPiece>{{{0, 8}, {0, 8}, true}}));
  EXPECT_EQ(
      pieces_of(tokens[1], tokens[0], true, 8),
      (std::vector<AttentionPiece>{{{0, 8}, {0, 4}, false}}));
  EXPECT_EQ(
      pieces_of(tokens[0], tokens[1], true, 8),
      (std::vector<AttentionPiece>{{{4, 8}, {0, 8}, false}}));
  EXPECT_EQ(
      pieces_of(tokens[1], tokens[0], false, 3),
      (std::vector<AttentionPiece>{
          {{0, 3}, {0, 8}, false},
          {{3, 6}, {0, 8}, false},
          {{6, 8}, {0, 8}, false}}));
}

TEST(ContextScope, ShardsBuffersAndRestoresThem) {
  on_cp(2, [](const DeviceMesh& mesh) {
    const bool first = mesh.get_local_rank() == 0;
    auto positions = torch::arange(7);
    auto rows = torch::arange(14).view({2, 7});
    auto labels = torch::arange(7);
    const auto whole = rows;
    {
      const auto scope = context_parallel(
          mesh,
          {.buffers = {positions, rows, labels},
           .buffer_seq_dims = {0, 1, -1},
           .no_restore_buffers = {labels}});
      const auto mine =
          first ? torch::tensor({0, 1, 5, 6}) : torch::tensor({2, 3, 4});
      EXPECT_TRUE(positions.equal(mine));
      EXPECT_TRUE(rows.equal(torch::stack({mine, mine + 7})));
      EXPECT_TRUE(labels.equal(mine));
      positions.fill_(-1); // affects only the shard
    }
    EXPECT_TRUE(positions.equal(torch::arange(7)));
    EXPECT_TRUE(rows.equal(torch::arange(14).view({2, 7})));
    EXPECT_TRUE(whole.is_same(rows));
    EXPECT_EQ(labels.size(0), first ? 4 : 3);
    EXPECT_TRUE(context_parallel_unshard(mesh, {labels}, {0})[0].equal(
        torch::arange(7)));
  });
}

TEST(ContextScope, EndsOnAnException) {
  on_cp(2, [](const DeviceMesh& mesh) {
    auto tokens = torch::arange(4);
    error_of([&] {
      const auto scope =
          context_parallel(mesh, {.buffers = {tokens}, .buffer_seq_dims = {0}});
      TORCH_CHECK(tokens.size(0) != 2, "enough");
    });
    EXPECT_EQ(tokens.size(0), 4);
    const auto q = uniform({1, 1, 3, 4}, 1);
    const CommDebugMode comm;
    at::scaled_dot_product_attention(q, q, q);
    EXPECT_EQ(comm.total({}).count, 0);
  });
}

TEST(ContextScope, UnshardsByTheScopeThatWasLast) {
  on_cp(2, [](const DeviceMesh& mesh) {
    const auto part = torch::full({2}, mesh.get_local_rank());
    const auto whole = [&] {
      return context_parallel_unshard(mesh, {part}, {0})[0];
    };
    EXPECT_TRUE(whole().equal(torch::tensor({0, 0, 1, 1})));
    for (const bool balanced : {true, false}) {
      { const auto scope = context_parallel(mesh, {.load_balance = balanced}); }
      EXPECT_TRUE(whole().equal(
          balanced ? torch::tensor({0, 1, 1, 0})
                   : torch::tensor({0, 0, 1, 1})));
    }
  });
}

// While a scope is open, tensors are sharded like its buffers, also after an
// inner scope on the same ranks.
TEST(ContextScope, UnshardsByTheScopeThatIsOpen) {
  on_cp(2, [](const DeviceMesh& mesh) {
    const auto full = torch::arange(6);
    for (const bool balanced : {true, false}) {
      auto tokens = torch::arange(6);
      at::Tensor shard;
      const auto is_full = [&] {
        return context_parallel_unshard(mesh, {shard}, {0})[0].equal(full);
      };
      {
        const auto outer = context_parallel(
            mesh,
            {.buffers = {tokens},
             .buffer_seq_dims = {0},
             .load_balance = balanced});
        shard = tokens.clone();
        {
          const auto inner = context_parallel(mesh);
          EXPECT_TRUE(is_full());
        }
        EXPECT_TRUE(is_full());
        {
          const auto inner =
              context_parallel(mesh, {.load_balance = !balanced});
          EXPECT_FALSE(is_full());
        }
        EXPECT_TRUE(is_full());
      }
      EXPECT_TRUE(is_full());
    }
  });
}

TEST(ContextScope, UlyssesNeedsTheOrderOfTheOuterScope) {
  on_cp(2, [](const DeviceMesh& mesh) {
    for (const bool balanced : {true, false}) {
      auto tokens = torch::arange(6);
      const auto outer = context_parallel(
          mesh,
          {.buffers = {tokens},
           .buffer_seq_dims = {0},
           .load_balance = balanced});
      EXPECT_EQ(
          error_of([&] {
            const auto inner = context_parallel(
                mesh, {.rotate_method = RotateMethod::kUlysses});
          }),
          balanced
              ? "[context_parallel] ulysses needs tokens in their order, but "
                "the enclosing scope balances them. Pass load_balance = false "
                "to the enclosing scope, or use another rotate_method."
              : "nothing was thrown");
    }
  });
}

// An inner scope without buffers keeps the order of the outer scope's tokens.
TEST(ContextScope, AttendsInTheOrderOfTheOuterScope) {
  on_cp(2, [](const DeviceMesh& mesh) {
    auto q = uniform({1, 2, 6, 4}, 1);
    const auto truth = at::scaled_dot_product_attention(q, q, q, {}, 0, true);
    const auto outer =
        context_parallel(mesh, {.buffers = {q}, .buffer_seq_dims = {2}});
    const auto inner = context_parallel(mesh);
    const auto out = at::scaled_dot_product_attention(q, q, q, {}, 0, true);
    expect_close(
        context_parallel_unshard(mesh, {out}, {2})[0], truth, "nested");
  });
}

TEST(ContextScope, UsesTheSetRotateMethod) {
  on_cp(2, [](const DeviceMesh& mesh) {
    const auto q = uniform({1, 2, 3, 4}, 1);
    const auto calls = [&] {
      const auto scope = context_parallel(mesh);
      const CommDebugMode comm;
      at::scaled_dot_product_attention(q, q, q);
      return counts(comm, /*backward=*/false);
    };
    EXPECT_EQ(calls(), "1 all_gather");
    set_rotate_method("alltoall");
    EXPECT_EQ(calls(), "1 all_to_all");
    set_rotate_method("ulysses");
    EXPECT_EQ(calls(), "4 all_to_all");
    set_rotate_method("allgather");
    EXPECT_EQ(calls(), "1 all_gather");
  });
}

TEST(ContextScope, IsCastAsOutside) {
  on_cp(2, [](const DeviceMesh& mesh) {
    const auto q = uniform({1, 2, 8, 4}, 1).to(at::kFloat);
    const Autocast lower(at::kCPU, at::kBFloat16);
    const auto truth = at::scaled_dot_product_attention(q, q, q);
    EXPECT_EQ(truth.scalar_type(), at::kBFloat16);
    const auto cut = distribute_tensor(q, mesh, {Shard(2)});
    const auto part = to_local(cut);
    const auto mine = part.to(at::kBFloat16); // mixed dtypes, as after a norm
    const auto scope = context_parallel(mesh);
    const auto whole = at::scaled_dot_product_attention(cut, cut, cut);
    EXPECT_EQ(whole.scalar_type(), at::kBFloat16);
    expect_close(whole, truth, "DTensors", 1e-2);
    expect_close(
        at::scaled_dot_product_attention(part, mine, mine),
        truth.chunk(2, 2)[static_cast<size_t>(mesh.get_local_rank())],
        "parts",
        1e-2);
  });
}

// Outside of the scope, a sharded sequence is gathered. In the scope, a
// sequence that is not sharded over the scope's ranks is computed as outside,
// also with masks.
TEST(ContextScope, LeavesOthersAlone) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"cp", "tp"});
    const auto q = uniform({1, 2, 4, 4}, 1);
    const auto mask = torch::ones({4, 4}, at::kBool).tril();
    const auto truth = at::scaled_dot_product_attention(q, q, q, mask);
    for (const auto& layout : std::vector<Placements>{
             {Replicate(), Shard(1)}, {Replicate(), Shard(2)}}) {
      const auto cut = distribute_tensor(q, mesh, layout);
      const auto scope = context_parallel(mesh["cp"]);
      expect_close(
          at::scaled_dot_product_attention(
              cut, cut, cut, replicate_tensor(mask, mesh)),
          truth,
          to_string(layout));
    }
    const auto cut = distribute_tensor(q, mesh, {Shard(2), Replicate()});
    expect_close(
        at::scaled_dot_product_attention(
            cut, cut, cut, replicate_tensor(mask, mesh)),
        truth,
        "outside");
  });
}

// A program started without a launcher has one rank.
TEST(ContextScope, NeedsNoRanks) {
  const auto mesh = init_device_mesh(at::kCPU, {1}, {"cp"});
  const AttentionCase c{.tokens = 5};
  for (const auto method : kMethods) {
    check_parts(c, mesh, method);
    check_dtensors(c, mesh, method);
  }
  expect_close(
      attend(c, inputs_of(c)[0], inputs_of(c)[1], inputs_of(c)[2]),
      truth_of(c)[0],
      "afterwards");
}

// The innermost scope applies until it ends.
TEST(ContextScope, Nests) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"a", "b"});
    const auto q = uniform({1, 2, 4, 4}, 1);
    const auto collectives_on = [&](const std::string& name) {
      const CommDebugMode comm;
      at::scaled_dot_product_attention(q, q, q);
      return comm.total({.mesh_dim = name}).count;
    };
    const auto outer = context_parallel(mesh["a"]);
    {
      const auto inner = context_parallel(mesh["b"]);
      EXPECT_EQ(collectives_on("a"), 0);
      EXPECT_EQ(collectives_on("b"), 1);
    }
    EXPECT_EQ(collectives_on("a"), 1);
  });
}

TEST(ContextScopeErrors, NameTheRankOutside) {
  const auto text = error_of([] {
    run_ranks(2, [](int64_t rank) {
      const auto mesh = make_device_mesh(at::kCPU, {1}, {0}, {"cp"});
      if (rank == 1) {
        const auto scope = context_parallel(mesh);
      }
    });
  });
  EXPECT_EQ(
      text,
      "[run_ranks] 1 of 2 ranks failed. rank 1: [context_parallel] rank 1 is "
      "not in the mesh (cp=1). Call it only on ranks of the mesh.");
}

TEST(ContextScopeErrors, NameShardsOfUnexpectedLength) {
  EXPECT_NE(
      error_of([] {
        on_cp(2, [](const DeviceMesh& mesh) {
          context_parallel_unshard(
              mesh, {torch::ones({1 + 2 * mesh.get_local_rank()})}, {0});
        });
      })
          .find("[context_parallel_unshard] a local shard has 1 token along "
                "dimension 0, but in a scope this rank has 2 of 4. Pass the "
                "local shard of each rank of the mesh."),
      std::string::npos);
}

// Ranks that disagree about the length all get an error.
TEST(ContextScopeErrors, OfUnequalShardsReachAllRanks) {
  for (const auto method : kMethods) {
    const auto text = error_of([&] {
      on_cp(2, [&](const DeviceMesh& mesh) {
        const auto q = uniform({1, 2, 3 + mesh.get_local_rank(), 4}, 1);
        const auto scope = context_parallel(mesh, {.rotate_method = method});
        at::scaled_dot_product_attention(q, q, q);
      });
    });
    EXPECT_EQ(text.find("[run_ranks] 2 of 2 ranks failed. every rank: "), 0)
        << text;
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
