// SPDX-License-Identifier: BSD-3-Clause
#include <tests/comm/contract/contract.h>

#include <c10/util/accumulate.h>

namespace dtensor::test {
namespace {

std::vector<ContractCase>& all_cases() {
  static std::vector<ContractCase> cases;
  return cases;
}

// Expects on destruction that a tensor has kept its values.
class Unchanged {
 public:
  explicit Unchanged(const at::Tensor& tensor)
      : tensor_(tensor),
        before_(tensor.clone()) {}
  ~Unchanged() {
    EXPECT_TRUE(torch::equal(tensor_, before_));
  }
  Unchanged(const Unchanged&) = delete;
  Unchanged& operator=(const Unchanged&) = delete;

 private:
  at::Tensor tensor_;
  at::Tensor before_;
};

void expect_result(
    const at::Tensor& got,
    const at::Tensor& expected,
    const at::Tensor& input) {
  expect_equal(got, expected.contiguous());
  EXPECT_FALSE(got.requires_grad());
  EXPECT_FALSE(got.is_alias_of(input));
}

void expect_pending(
    const PendingPtr& pending,
    const at::Tensor& expected,
    const at::Tensor& input = {}) {
  const at::Tensor got = pending->wait();
  expect_result(got, expected, input.defined() ? input : expected);
  EXPECT_TRUE(pending->wait().is_same(got));
}

Sizes sizes_along(const std::vector<at::Tensor>& parts, int64_t dim) {
  Sizes sizes;
  for (const at::Tensor& part : parts) {
    sizes.push_back(part.size(dim));
  }
  return sizes;
}

// Runs the asynchronous forms that reductions have in common: start(input, out)
// enters the collective.
template <typename Start>
void expect_async_reduction(
    const at::Tensor& input,
    const at::Tensor& expected,
    const Start& start) {
  const at::Tensor out =
      at::empty(expected.sizes(), expected.options().device(input.device()));
  const PendingPtr copied = start(input, at::Tensor());
  const PendingPtr moved = start(input.clone(), at::Tensor());
  const PendingPtr given = start(input, out);
  EXPECT_TRUE(given->wait().is_alias_of(out));
  expect_equal(out, expected.contiguous());
  expect_pending(moved, expected);
  expect_pending(copied, expected, input);
}

} // namespace

bool list_case(ContractCase item) {
  all_cases().push_back(std::move(item));
  return true;
}

std::vector<ContractCase> contract_cases(Needs most) {
  std::vector<ContractCase> cases;
  for (const ContractCase& item : all_cases()) {
    if (item.needs <= most) {
      cases.push_back(item);
    }
  }
  return cases;
}

void expect_all_reduce(
    Group& group,
    const at::Tensor& input,
    ReduceOp op,
    const at::Tensor& expected) {
  const Unchanged unchanged(input);
  expect_result(group.all_reduce(input, op), expected, input);
  expect_async_reduction(
      input, expected, [&](at::Tensor x, const at::Tensor& out) {
        return group.all_reduce_async(std::move(x), op, out);
      });
}

void expect_reduce_scatter(
    Group& group,
    const at::Tensor& input,
    int64_t dim,
    ReduceOp op,
    const at::Tensor& whole,
    SizesRef sizes) {
  const Unchanged unchanged(input);
  const at::Tensor expected = mine(
      group,
      sizes.empty() ? chunks(whole, group.size(), dim)
                    : whole.split_with_sizes(sizes, dim));
  expect_result(group.reduce_scatter(input, dim, op, sizes), expected, input);
  expect_async_reduction(
      input, expected, [&](at::Tensor x, const at::Tensor& out) {
        return group.reduce_scatter_async(std::move(x), dim, op, out, sizes);
      });
}

void expect_all_gather(
    Group& group,
    const std::vector<at::Tensor>& parts,
    int64_t dim) {
  const at::Tensor& input = mine(group, parts);
  const Unchanged unchanged(input);
  const at::Tensor expected = torch::cat(parts, dim);
  const Sizes sizes = sizes_along(parts, dim);
  expect_result(group.all_gather(input, dim), expected, input);
  expect_result(group.all_gather(input, dim, sizes), expected, input);
  const int64_t total = expected.size(dim);
  const auto moved = group.all_gather_async(input.clone(), dim, total);
  const auto copied = group.all_gather_async(input, dim, total);
  const auto sized = group.all_gather_async(input, dim, sizes);
  const auto unsized = group.all_gather_async(input, dim, SizesRef());
  expect_pending(unsized, expected, input);
  expect_pending(sized, expected, input);
  expect_pending(copied, expected, input);
  expect_pending(moved, expected);
}

void expect_shard_dim_alltoall(
    Group& group,
    const std::vector<at::Tensor>& parts,
    int64_t from,
    int64_t to) {
  const at::Tensor& input = mine(group, parts);
  const Unchanged unchanged(input);
  const at::Tensor whole = torch::cat(parts, from);
  const at::Tensor expected = mine(group, chunks(whole, group.size(), to));
  const Sizes sizes = sizes_along(parts, from);
  for (const SizesRef given : {SizesRef(), SizesRef(sizes)}) {
    const auto sync = group.shard_dim_alltoall(input, from, to, given);
    expect_result(sync, expected, input);
    expect_pending(
        group.shard_dim_alltoall_async(input, from, to, given),
        expected,
        input);
  }
}

void expect_all_to_all(Group& group, const Message& message) {
  std::vector<at::Tensor> sent;
  std::vector<at::Tensor> expected;
  std::vector<Sizes> shapes;
  Sizes counts;
  Sizes expected_counts;
  for (int64_t peer = 0; peer < group.size(); ++peer) {
    sent.push_back(message(group.rank(), peer));
    expected.push_back(message(peer, group.rank()));
    shapes.emplace_back(expected.back().sizes());
    counts.push_back(sent.back().numel());
    expected_counts.push_back(expected.back().numel());
  }
  const auto flat = [](std::vector<at::Tensor> parts) {
    for (at::Tensor& part : parts) {
      part = part.reshape({-1});
    }
    return torch::cat(parts);
  };
  const Unchanged unchanged(flat(sent));
  for (const auto& given : {std::vector<Sizes>(), shapes}) {
    const auto received = group.all_to_all(sent, given);
    ASSERT_EQ(received.size(), expected.size());
    for (size_t peer = 0; peer < expected.size(); ++peer) {
      expect_result(received[peer], expected[peer], sent[peer]);
    }
  }
  const auto pending =
      group.all_to_all_async(flat(sent), counts, expected_counts);
  expect_pending(pending, flat(expected));
}

Message uneven_messages(int64_t rows, at::ScalarType dtype) {
  return [=](int64_t from, int64_t to) {
    return input_of(from * 16 + to, {(from + 2 * to) % 4 * rows, 2}, dtype);
  };
}

std::vector<at::Tensor>
inputs(const Group& group, SizesRef sizes, at::ScalarType dtype) {
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    all.push_back(input_of(rank, sizes, dtype));
  }
  return all;
}

std::vector<at::Tensor>
chunks(const at::Tensor& whole, int64_t n, int64_t dim) {
  std::vector<at::Tensor> all = whole.chunk(n, dim);
  while (static_cast<int64_t>(all.size()) < n) {
    all.push_back(whole.narrow(dim, 0, 0));
  }
  return all;
}

// sin() is avoided: its vector library may take another code path in one of
// several threads that call it first.
at::Tensor rounding(int64_t rank, SizesRef sizes, at::ScalarType dtype) {
  const at::Tensor index =
      torch::arange(c10::multiply_integers(sizes), at::kDouble) + 1;
  const at::Tensor turns = index * (rank * 2 + 3) * 0.7390851332151607;
  const at::Tensor values = (turns.frac() * 200 - 100).view(sizes);
  return there(
      at::isIntegralType(dtype, true) ? values.to(at::kLong).to(dtype)
                                      : values.to(dtype));
}

} // namespace dtensor::test
