// SPDX-License-Identifier: BSD-3-Clause
#include "oracle.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;

const Placements kAll = {
    Replicate(),
    Shard(0),
    Shard(1),
    Partial(ReduceOp::kSum)};
const Placements kVector = {Replicate(), Shard(0)};

Tensors operands(int64_t gates) {
  return {
      variable({5, 3}, 1),
      variable({5, 2}, 2),
      variable({5, 2}, 3),
      variable({gates * 2, 3}, 4),
      variable({gates * 2, 2}, 5),
      variable({gates * 2}, 6),
      variable({gates * 2}, 7)};
}

const std::vector<Placements> kChoices =
    {kAll, kAll, kAll, kAll, kAll, kVector, kVector};

TEST(RecurrentTest, Cells) {
  expect_same_as_plain(
      {"gru_cell",
       operands(3),
       kChoices,
       [](const Tensors& t) {
         return at::gru_cell(t[0], t[1], t[3], t[4], t[5], t[6]) + t[2];
       }},
      8);
  expect_same_as_plain(
      {"rnn_tanh_cell",
       operands(1),
       kChoices,
       [](const Tensors& t) {
         return at::rnn_tanh_cell(t[0], t[1], t[3], t[4], t[5], t[6]) + t[2];
       }},
      8);
  expect_same_as_plain(
      {"lstm_cell",
       operands(4),
       kChoices,
       [](const Tensors& t) {
         const auto [h, c] =
             at::lstm_cell(t[0], {t[1], t[2]}, t[3], t[4], t[5], t[6]);
         return h * 2 + c;
       }},
      8);
}

TEST(RecurrentTest, ABiasOfItsOwnForEachSample) {
  auto all = operands(1);
  all[6] = variable({5, 2}, 7);
  expect_same_as_plain(
      {"rnn_tanh_cell",
       all,
       kChoices,
       [](const Tensors& t) {
         return at::rnn_tanh_cell(t[0], t[1], t[3], t[4], t[5], t[6]) + t[2];
       }},
      8);
}

} // namespace TEST_SOURCE
} // namespace dtensor
