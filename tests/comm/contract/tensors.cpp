// SPDX-License-Identifier: BSD-3-Clause
// Inputs that are not plain contiguous tensors, and modes of LibTorch.
#include <tests/comm/contract/contract.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

// Returns a tensor with gaps in its memory.
at::Tensor strided(int64_t rank) {
  return input_of(rank, {4, 6}).t().slice(0, 0, 6, 2);
}

std::vector<at::Tensor> strided_inputs(const Group& group) {
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    all.push_back(strided(rank));
  }
  return all;
}

CONTRACT_CASE(StridedInputs, Needs::kPeers) {
  const auto terms = strided_inputs(group);
  const at::Tensor& x = mine(group, terms);
  expect_all_reduce(group, x, ReduceOp::kSum, reduced(terms, ReduceOp::kSum));
  for (const int64_t dim : {0, 1}) {
    const auto max = reduced(terms, ReduceOp::kMax);
    expect_reduce_scatter(group, x, dim, ReduceOp::kMax, max);
    expect_all_gather(group, terms, dim);
    expect_shard_dim_alltoall(group, terms, dim, 1 - dim);
  }
  const std::vector<at::Tensor> to_all(terms.size(), x);
  expect_equal(group.all_to_all(to_all).back(), terms.back().contiguous());
  expect_equal(group.broadcast(x, 1), terms[1].contiguous());
  const auto parts = group.rank() == 0 ? to_all : std::vector<at::Tensor>();
  expect_equal(group.scatter(parts, x, 0), terms[0].contiguous());
  const auto gathered = group.gather(x, 1);
  for (size_t rank = 0; rank < gathered.size(); ++rank) {
    expect_equal(gathered[rank], terms[rank].contiguous());
  }
  if (group.rank() == 0) {
    group.send(x, 1);
  } else if (group.rank() == 1) {
    expect_equal(group.recv(x, 0), terms[0].contiguous());
  }
}

// One rank may pass strided tensors while others pass contiguous tensors.
CONTRACT_CASE(StridesOfSomeRanks, Needs::kPeers) {
  const auto terms = inputs(group, {4, 3});
  const at::Tensor& plain = mine(group, terms);
  const bool is_odd = group.rank() % 2 == 1;
  const at::Tensor x = is_odd ? plain.t().contiguous().t() : plain;
  const at::Tensor sum = reduced(terms, ReduceOp::kSum);
  expect_equal(group.all_reduce(x, ReduceOp::kSum), sum);
  expect_equal(group.all_gather(x, 1), torch::cat(terms, 1));
  const at::Tensor leaf = is_odd ? plain.clone().requires_grad_() : plain;
  expect_equal(group.all_reduce(leaf, ReduceOp::kSum), sum);
}

CONTRACT_CASE(ExpandedInputs, Needs::kPeers) {
  const at::Tensor twos = full({}, 2).expand({50});
  expect_equal(
      group.all_reduce(twos, ReduceOp::kSum),
      full({50}, 2 * static_cast<double>(group.size())));
  expect_equal(group.all_reduce(twos, ReduceOp::kMin), full({50}, 2));
}

CONTRACT_CASE(ConjugatedInputs, Needs::kPeers) {
  std::vector<at::Tensor> terms;
  for (at::Tensor& x : inputs(group, {6}, at::kComplexFloat)) {
    terms.push_back((x * c10::complex<float>(1, 2)).conj());
  }
  EXPECT_TRUE(mine(group, terms).is_conj());
  std::vector<at::Tensor> resolved;
  for (const at::Tensor& term : terms) {
    resolved.push_back(term.resolve_conj());
  }
  expect_equal(
      group.all_reduce(mine(group, terms), ReduceOp::kSum),
      reduced(resolved, ReduceOp::kSum));
  expect_equal(group.all_gather(mine(group, terms), 0), torch::cat(resolved));
}

CONTRACT_CASE(ResultsHaveNoHistory, Needs::kPeers) {
  const at::Tensor x = full({4, 2}, 1).requires_grad_();
  EXPECT_FALSE(group.all_reduce(x.t(), ReduceOp::kSum).requires_grad());
  EXPECT_FALSE(group.all_gather(x * 2, 0).requires_grad());
  EXPECT_FALSE(group.reduce_scatter(x * 2, 0, ReduceOp::kAvg).requires_grad());
  EXPECT_FALSE(group.broadcast(x, 0).requires_grad());
  const auto pending = group.all_reduce_async(x, ReduceOp::kSum);
  EXPECT_FALSE(pending->wait().requires_grad());
}

// A backend may return an input that is moved in.
CONTRACT_CASE(MovedInputsLeaveNoHistory, Needs::kPeers) {
  const at::Tensor x = full({4, 2}, 1).requires_grad_();
  const auto n = static_cast<double>(group.size());
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
    const at::Tensor got = group.all_reduce_async(x * 2, op)->wait();
    EXPECT_FALSE(got.requires_grad()) << to_string(op);
    expect_equal(got, full({4, 2}, op == ReduceOp::kSum ? 2 * n : 2));
  }
}

CONTRACT_CASE(OutMayRequireGrad, Needs::kPeers) {
  const at::Tensor x = full({4, 2}, 1);
  const at::Tensor out = full({4, 2}, 0).requires_grad_();
  const auto sum = group.all_reduce_async(x, ReduceOp::kSum, out);
  EXPECT_TRUE(sum->wait().is_alias_of(out));
  expect_equal(out, full({4, 2}, static_cast<double>(group.size())));
  const GroupPtr alone = new_group({get_rank()}, "alone");
  alone->all_reduce_async(x, ReduceOp::kSum, out)->wait();
  expect_equal(out, x);
  EXPECT_TRUE(out.is_leaf() && out.requires_grad());
}

CONTRACT_CASE(InferenceMode, Needs::kPeers) {
  const c10::InferenceMode inference;
  const auto terms = inputs(group, {4});
  const at::Tensor sum = group.all_reduce(mine(group, terms), ReduceOp::kSum);
  EXPECT_TRUE(sum.is_inference());
  expect_equal(sum, reduced(terms, ReduceOp::kSum));
  expect_equal(group.all_gather(mine(group, terms), 0), torch::cat(terms));
}

} // namespace TEST_SOURCE
} // namespace dtensor
