// SPDX-License-Identifier: BSD-3-Clause
// UnitParameterSource: provides operators with the unsharded parameters of a
// unit.
#pragma once

#include <dtensor/data_parallel/unit_impl.h>
#include <dtensor/ops/unsharded/unsharded_source_impl.h>

#include <optional>
#include <utility>

namespace dtensor::detail {

/// Source of one parameter of a unit.
class UnitParameterSource final : public UnshardedSource {
 public:
  UnitParameterSource(UnitPtr unit, size_t index)
      : unit_(std::move(unit)),
        index_(index) {}
  ~UnitParameterSource() override {
    unit_->forget(index_);
  }
  UnitParameterSource(const UnitParameterSource&) = delete;
  UnitParameterSource& operator=(const UnitParameterSource&) = delete;
  const UnitPtr& unit() const {
    return unit_;
  }
  bool is_open() const override {
    return unit_->is_open();
  }
  at::Tensor take_unsharded() override {
    return unit_->take_unsharded(index_);
  }
  void give_back(at::TensorList results) override {
    unit_->give_back(index_, results);
  }
  std::optional<at::ScalarType> operand_dtype() const override {
    return unit_->operand_dtype(index_);
  }
  ParameterState state() const override {
    return unit_->state(index_);
  }
  bool follows_parameter() const override {
    return true;
  }
  void note_write() override {
    unit_->note_change();
  }
  bool keeps_source_for(const at::Tensor& data) override {
    unit_->check_replacement_data(index_, data);
    return true;
  }

 private:
  UnitPtr unit_;
  size_t index_;
};

} // namespace dtensor::detail
