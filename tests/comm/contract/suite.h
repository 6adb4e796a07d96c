// SPDX-License-Identifier: BSD-3-Clause
// The suite Contract: every case of the contract on the ranks of a backend.
// Include it in one source of a program, and instantiate the suite there:
//
//   INSTANTIATE_TEST_SUITE_P(
//       Gloo, Contract, on_backend(Needs::kPeers, {{"3", on_gloo_ranks}}),
//       name_of);
#pragma once

#include <tests/comm/contract/contract.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace dtensor::test {

/// Runs a function on ranks that are the members of a group.
struct ContractRanks {
  std::string name;
  std::function<void(const std::function<void(Group&)>& check)> run;
};

inline std::ostream& operator<<(std::ostream& out, const ContractRanks& item) {
  return out << item.name;
}

using ContractParam = std::tuple<ContractRanks, ContractCase>;

class Contract : public ::testing::TestWithParam<ContractParam> {};

TEST_P(Contract, Holds) {
  const auto& [ranks, item] = GetParam();
  ranks.run(item.check);
}

inline auto on_backend(Needs most, std::vector<ContractRanks> ranks) {
  return ::testing::Combine(
      ::testing::ValuesIn(std::move(ranks)),
      ::testing::ValuesIn(contract_cases(most)));
}

inline std::string name_of(
    const ::testing::TestParamInfo<ContractParam>& info) {
  const auto& [ranks, item] = info.param;
  return item.name + "_on_" + ranks.name;
}

} // namespace dtensor::test
