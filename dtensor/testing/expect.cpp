// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/testing/expect.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>

#include <algorithm>

namespace dtensor::testing {

at::Tensor
seeded_randn(at::IntArrayRef sizes, at::ScalarType dtype, uint64_t seed) {
  return at::randn(
      sizes,
      at::detail::createCPUGenerator(seed),
      at::TensorOptions().dtype(dtype));
}

void expect_close(
    const at::Tensor& actual,
    const at::Tensor& expected,
    double rtol,
    double atol) {
  const c10::NoGradGuard no_grad;
  const bool distributed = is_dtensor(actual);
  const at::Tensor full =
      distributed ? DTensor(actual).full_tensor() : actual.detach();
  const auto layout =
      distributed ? to_string(*DTensor(actual).spec()) : "a plain tensor";
  DTENSOR_CHECK(
      full.sizes() == expected.sizes() &&
          full.scalar_type() == expected.scalar_type(),
      "[expect_close] {} is {}{}, expected {}{}.",
      layout,
      short_name(full.scalar_type()),
      full.sizes(),
      short_name(expected.scalar_type()),
      expected.sizes());
  DTENSOR_CHECK(
      at::allclose(full, expected, rtol, atol, /*equal_nan=*/true),
      "[expect_close] {} differs by up to {}.",
      layout,
      full.sub(expected).abs().max().item<double>());
}

void expect_layout(const at::Tensor& t, std::string_view placements) {
  DTENSOR_CHECK(
      is_dtensor(t),
      "[expect_layout] the tensor is plain, expected {}.",
      std::string(placements));
  const DTensor d(t);
  const auto wanted = parse_placements(placements);
  DTENSOR_CHECK(
      d.placements() == PlacementsRef(wanted),
      "[expect_layout] {}, expected {}.",
      *d.spec(),
      std::string(placements));
}

CollectiveLog::CollectiveLog() : guard_(*this) {}

void CollectiveLog::on_collective(const CollectiveEvent& event) {
  kinds_.push_back(event.kind);
  wire_bytes_ += event.wire_bytes;
}

int64_t CollectiveLog::total() const {
  return static_cast<int64_t>(kinds_.size());
}

int64_t CollectiveLog::count(CollectiveKind kind) const {
  return std::ranges::count(kinds_, kind);
}

double CollectiveLog::wire_bytes() const {
  return wire_bytes_;
}

std::string CollectiveLog::text() const {
  std::string text;
  for (const auto kind : kinds_) {
    text += text.empty() ? "" : ", ";
    text += to_string(kind);
  }
  return text;
}

void CollectiveLog::clear() {
  kinds_.clear();
  wire_bytes_ = 0;
}

} // namespace dtensor::testing
