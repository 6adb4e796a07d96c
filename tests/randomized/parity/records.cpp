// SPDX-License-Identifier: BSD-3-Clause
// Reading and writing of values in the form that C++ and Python share.
#include "machine.h"

#include <cmath>

namespace dtensor::parity {
namespace {

const std::map<std::string, at::ScalarType> kDtypes = {
    {"float32", at::kFloat},
    {"float64", at::kDouble},
    {"int64", at::kLong},
    {"bool", at::kBool},
    {"complex64", at::kComplexFloat}};

std::string name_of(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (known == dtype) {
      return name;
    }
  }
  return c10::toString(dtype);
}

Json values_of(const at::Tensor& given) {
  auto t = given.detach();
  if (t.is_complex()) {
    t = at::view_as_real(t.resolve_conj());
  }
  t = t.to(at::kDouble).contiguous();
  Json values = Json::array();
  for (int64_t i = 0; i < t.numel(); ++i) {
    const double value = t.data_ptr<double>()[i];
    if (std::isfinite(value)) {
      values.push_back(value);
    } else {
      values.push_back(
          std::isnan(value) ? "nan" : (value > 0 ? "inf" : "-inf"));
    }
  }
  return values;
}

Json meta_record(const at::Tensor& t) {
  return {
      {"shape", t.sizes().vec()},
      {"stride", t.strides().vec()},
      {"dtype", name_of(t.scalar_type())},
      {"requires_grad", t.requires_grad()}};
}

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (const auto size : sizes) {
    count *= size;
  }
  return count;
}

} // namespace

Json texts_of(PlacementsRef placements) {
  Json texts = Json::array();
  for (const auto& placement : placements) {
    texts.push_back(to_string(placement));
  }
  return texts;
}

Placements placements_of(const Json& texts) {
  Placements placements;
  for (const auto& text : texts) {
    placements.push_back(
        parse_placements(text.get_ref<const std::string&>())[0]);
  }
  return placements;
}

std::optional<int64_t> src_data_rank(const Json& step) {
  const auto given = step.value("src_data_rank", Json(0));
  return given.is_null() ? std::nullopt : std::optional(given.get<int64_t>());
}

at::ScalarType dtype_of(const std::string& name) {
  return kDtypes.at(name.starts_with("!") ? name.substr(1) : name);
}

Json record_of(const DeviceMesh& mesh) {
  const auto& coordinate = mesh.get_coordinate();
  return {
      {"shape", mesh.shape().vec()},
      {"ranks", mesh.ranks()},
      {"names", mesh.mesh_dim_names()},
      {"coordinate", coordinate ? Json(*coordinate) : Json()}};
}

Json record_of(const at::Tensor& t) {
  if (!t.defined()) {
    return nullptr;
  }
  auto record = meta_record(t);
  if (!is_dtensor(t)) {
    record["values"] = values_of(t);
    return record;
  }
  const DTensor d(t.detach());
  const auto local = d.to_local();
  record["placements"] = texts_of(d.placements());
  record["mesh"] = record_of(d.device_mesh());
  record["local_shape"] = local.sizes().vec();
  record["local"] = values_of(local);
  record["whole"] = values_of(d.full_tensor());
  return record;
}

at::Tensor pattern(const Json& step, int64_t seed) {
  const std::vector<int64_t> sizes = step["sizes"];
  const auto dtype = dtype_of(step.value("dtype", "float32"));
  const auto numbers = at::arange(product(sizes), at::kLong) * 37 + seed * 101;
  at::Tensor values;
  if (const int64_t below = step.value("below", 0); below != 0) {
    values = numbers % below;
  } else if (dtype == at::kBool) {
    values = numbers % 2 == 0;
  } else if (at::isFloatingType(dtype) || at::isComplexType(dtype)) {
    const int64_t low = step.value("positive", false) ? -1 : 26;
    values = (numbers % 53 - low).to(at::kDouble) / 16;
  } else {
    values = numbers % 7 - 3;
  }
  return values.to(dtype).reshape(sizes);
}

} // namespace dtensor::parity
