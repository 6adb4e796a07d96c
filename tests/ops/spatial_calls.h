// SPDX-License-Identifier: BSD-3-Clause
// Arguments of plain calls of operators on (samples, channels, space...).
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

namespace dtensor::testing {

using CallTable = std::map<std::string, std::vector<c10::IValue>>;

/// Makes tensors of (samples, channels, space...) and lists of one number for
/// each spatial dimension.
class SpatialOperands {
 public:
  explicit SpatialOperands(int64_t space) : space_(space) {}

  at::Tensor tensor(int64_t size) const {
    auto sizes = ints(size);
    sizes.insert(sizes.begin(), {2, 3});
    return at::full(sizes, 0.5, at::kFloat);
  }
  at::Tensor indices(int64_t size) const {
    return at::zeros_like(tensor(size), at::kLong);
  }
  std::vector<int64_t> ints(int64_t value) const {
    return std::vector<int64_t>(static_cast<size_t>(space_), value);
  }
  std::vector<int64_t> all_sizes(int64_t size) const {
    return tensor(size).sizes().vec();
  }
  std::string suffix() const {
    return std::to_string(space_) + "d";
  }

 private:
  int64_t space_;
};

inline void add_convolution_calls(CallTable& table) {
  using Ints = std::vector<int64_t>;
  const auto x = at::full({2, 3, 5, 4}, 0.5, at::kFloat);
  const auto weight = at::full({6, 3, 2, 2}, 0.5, at::kFloat);
  const auto y = at::full({2, 6, 4, 3}, 0.5, at::kFloat);
  const c10::IValue mask = c10::List<bool>({true, true, true});
  const c10::IValue no_bias;
  table["convolution"] = {
      x, weight, no_bias, Ints{1}, Ints{0}, Ints{1}, false, Ints{0}, 1};
  table["_convolution"] = table["convolution"];
  table["convolution_backward"] = {
      y,
      x,
      weight,
      Ints{6},
      Ints{1},
      Ints{0},
      Ints{1},
      false,
      Ints{0},
      1,
      mask};
}

inline void add_pooling_calls(CallTable& table) {
  for (const int64_t space : {2, 3}) {
    const SpatialOperands of(space);
    const auto d = of.suffix();
    const auto two = of.ints(2);
    const auto zero = of.ints(0);
    const auto one = of.ints(1);
    const c10::IValue none;
    table["avg_pool" + d] = {of.tensor(6), two};
    table["avg_pool" + d + "_backward"] = {
        of.tensor(3), of.tensor(6), two, two, zero, false, true, none};
    table["_adaptive_avg_pool" + d] = {of.tensor(6), two};
    table["_adaptive_avg_pool" + d + "_backward"] = {
        of.tensor(2), of.tensor(6)};
    table["adaptive_max_pool" + d] = {of.tensor(6), two};
    table["adaptive_max_pool" + d + "_backward"] = {
        of.tensor(2), of.tensor(6), of.indices(2)};
    table["max_pool" + d + "_with_indices"] = {of.tensor(6), two};
    table["max_pool" + d + "_with_indices_backward"] = {
        of.tensor(3), of.tensor(6), two, two, zero, one, false, of.indices(3)};
    const auto samples = at::full({2, 3, space}, 0.5, at::kFloat);
    table["fractional_max_pool" + d] = {of.tensor(6), two, two, samples};
    table["fractional_max_pool" + d + "_backward"] = {
        of.tensor(2), of.tensor(6), two, two, of.indices(2)};
    table["max_unpool" + d] = {of.tensor(3), of.indices(3), of.ints(6)};
    if (space == 3) {
      auto& call = table["max_unpool3d"];
      call.insert(call.end(), {two, zero});
    }
  }
}

inline void add_upsampling_calls(CallTable& table) {
  const auto add = [&](const std::string& name,
                       int64_t space,
                       std::vector<c10::IValue> options) {
    const SpatialOperands of(space);
    table[name] = {of.tensor(4), of.ints(8)};
    table[name + "_backward"] = {of.tensor(8), of.ints(8), of.all_sizes(4)};
    for (const auto& call : {name, name + "_backward"}) {
      table[call].insert(table[call].end(), options.begin(), options.end());
    }
  };
  for (const int64_t space : {1, 2, 3}) {
    const auto d = SpatialOperands(space).suffix();
    add("upsample_nearest" + d, space, {});
    add("_upsample_nearest_exact" + d, space, {});
  }
  add("upsample_linear1d", 1, {false});
  add("upsample_trilinear3d", 3, {false});
  for (const auto* name :
       {"upsample_bilinear2d",
        "upsample_bicubic2d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa"}) {
    add(name, 2, {false});
  }
}

inline void add_padding_calls(CallTable& table) {
  for (const std::string kind : {"reflection_pad", "replication_pad"}) {
    for (const int64_t space : {1, 2, 3}) {
      const SpatialOperands of(space);
      const std::vector<int64_t> pad(static_cast<size_t>(2 * space), 1);
      const auto name = kind + of.suffix();
      table[name] = {of.tensor(4), pad};
      table[name + "_backward"] = {of.tensor(6), of.tensor(4), pad};
    }
  }
}

inline void add_fold_calls(CallTable& table) {
  const SpatialOperands picture(2);
  const auto one = picture.ints(1);
  const auto zero = picture.ints(0);
  const auto two = picture.ints(2);
  const auto blocks = at::full({2, 8, 3, 4}, 0.5, at::kFloat);
  table["im2col"] = {picture.tensor(5), two, one, zero, two};
  table["col2im"] = {
      at::full({2, 12, 4}, 0.5, at::kFloat),
      picture.ints(4),
      two,
      one,
      zero,
      two};
  table["pixel_shuffle"] = {blocks, 2};
  table["pixel_unshuffle"] = {picture.tensor(4), 2};
  table["channel_shuffle"] = {blocks, 4};
  const c10::IValue mask = c10::List<bool>({true, true});
  for (const int64_t space : {2, 3}) {
    const SpatialOperands of(space);
    auto sizes = of.ints(5);
    sizes.insert(sizes.begin(), 2);
    sizes.push_back(space);
    const auto grid = at::zeros(sizes, at::kFloat);
    const auto name = "grid_sampler_" + of.suffix();
    table[name] = {of.tensor(4), grid, 0, 0, false};
    table[name + "_backward"] = {
        of.tensor(5), of.tensor(4), grid, 0, 0, false, mask};
  }
}

inline void add_spatial_calls(CallTable& table) {
  add_convolution_calls(table);
  add_pooling_calls(table);
  add_upsampling_calls(table);
  add_padding_calls(table);
  add_fold_calls(table);
}

} // namespace dtensor::testing
