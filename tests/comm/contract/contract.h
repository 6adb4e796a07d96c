// SPDX-License-Identifier: BSD-3-Clause
// The contract of dtensor/comm/group.h as a list of cases. Each case calls a
// group of two or more ranks and compares the results with plain operators on
// the inputs of all ranks. suite.h runs the cases on a backend.
//
//   CONTRACT_CASE(BroadcastFromEveryRoot, Needs::kPeers) {
//     expect_equal(group.broadcast(...), ...);
//   }
#pragma once

#include <dtensor/comm/group.h>
#include <dtensor/comm/world.h>
#include <gtest/gtest.h>
#include <tests/comm/collective_inputs.h>
#include <torch/torch.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace dtensor::test {

/// Prerequisite of a case.
enum class Needs {
  kNothing,       // the case does not communicate
  kPeers,         // the backend carries data between ranks
  kComparedCalls, // the backend also compares the calls of different ranks
};

struct ContractCase {
  std::string name;
  Needs needs;
  void (*check)(Group& group);
};

inline std::ostream& operator<<(std::ostream& out, const ContractCase& item) {
  return out << item.name;
}

/// Returns the cases with these prerequisites or weaker ones. Names of cases
/// over many megabytes begin with "Long".
std::vector<ContractCase> contract_cases(Needs most);

/// Adds a case to the list.
bool list_case(ContractCase item);

/// Expects the collective to give `expected`, in all its forms: synchronous,
/// and asynchronous with a copied input, a moved input, and `out`. The input
/// keeps its values and shares no memory with the result.
void expect_all_reduce(
    Group& group,
    const at::Tensor& input,
    ReduceOp op,
    const at::Tensor& expected);

/// Like expect_all_reduce(). `whole` is the reduced tensor; each rank expects
/// its shard of sizes[rank], or its torch.chunk.
void expect_reduce_scatter(
    Group& group,
    const at::Tensor& input,
    int64_t dim,
    ReduceOp op,
    const at::Tensor& whole,
    SizesRef sizes = {});

/// Expects collectives of two ranks to fail while only one of the ranks has
/// noted an error of an operator. Then lets the other rank note one, too.
void expect_error_of_one_rank(Group& pair);

/// Gathers `parts`, the inputs of all ranks, with and without sizes.
void expect_all_gather(
    Group& group,
    const std::vector<at::Tensor>& parts,
    int64_t dim);

/// Redistributes `parts`, the shards of all ranks along `from`, to shards along
/// `to`, with and without sizes.
void expect_shard_dim_alltoall(
    Group& group,
    const std::vector<at::Tensor>& parts,
    int64_t from,
    int64_t to);

/// Runs rounds of random kinds and sizes, with ranks at different speeds.
/// Checks the results of all rounds at the end, so an overwritten result is
/// found. Changes the input after each round.
void many_rounds(Group& group, int64_t rounds);

using Message = std::function<at::Tensor(int64_t from, int64_t to)>;

/// Exchanges the messages, with and without shapes, and as one tensor.
void expect_all_to_all(Group& group, const Message& message);

/// Returns the messages with shapes that differ between pairs of ranks; some
/// are empty.
Message uneven_messages(int64_t rows, at::ScalarType dtype = at::kFloat);

/// Returns the group's inputs, by rank.
std::vector<at::Tensor>
inputs(const Group& group, SizesRef sizes, at::ScalarType dtype = at::kFloat);

/// Returns a tensor full of `value` on the device of the tests.
inline at::Tensor
full(SizesRef sizes, double value, at::ScalarType dtype = at::kFloat) {
  return there(torch::full(sizes, value, dtype));
}

/// Returns the torch.chunk of each rank, with empty chunks at the end.
std::vector<at::Tensor> chunks(const at::Tensor& whole, int64_t n, int64_t dim);

/// Returns values with sums that need rounding.
at::Tensor rounding(int64_t rank, SizesRef sizes, at::ScalarType dtype);

/// Returns the element of `list` at the position of this rank.
template <typename List>
const auto& mine(const Group& group, const List& list) {
  return list[static_cast<size_t>(group.rank())];
}

/// Calls `fn` with each dtype and operation that are defined together.
template <typename Fn>
void for_every_reduction(const Fn& fn) {
  for (const at::ScalarType dtype : kEveryDtype) {
    for (const ReduceOp op : kEveryOp) {
      if (has_meaning(op, dtype)) {
        SCOPED_TRACE(c10::str(dtype, " ", to_string(op)));
        fn(dtype, op);
      }
    }
  }
}

} // namespace dtensor::test

#define CONTRACT_CASE(name, needs)                    \
  static void name(dtensor::Group& group);            \
  [[maybe_unused]] static const bool name##IsListed = \
      dtensor::test::list_case({#name, needs, name}); \
  static void name([[maybe_unused]] dtensor::Group& group)
