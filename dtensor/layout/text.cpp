// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/text.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <sstream>
#include <utility>

namespace dtensor {
namespace {

constexpr std::array<std::pair<at::ScalarType, const char*>, 12> kShortNames = {
    {{at::kFloat, "f32"},
     {at::kDouble, "f64"},
     {at::kBFloat16, "bf16"},
     {at::kHalf, "f16"},
     {at::kLong, "i64"},
     {at::kInt, "i32"},
     {at::kShort, "i16"},
     {at::kChar, "i8"},
     {at::kByte, "u8"},
     {at::kBool, "bool"},
     {at::kComplexFloat, "c64"},
     {at::kComplexDouble, "c128"}}};

template <typename List>
void print_list(std::ostream& os, const List& list, const char* separator) {
  const char* before = "";
  for (const auto& item : list) {
    os << before << item;
    before = separator;
  }
}

std::ostream& print_unit(std::ostream& os, const Placement& placement) {
  return placement.unit() == 1 ? os : os << ", u=" << placement.unit();
}

template <typename T>
std::string print(const T& value) {
  std::ostringstream os;
  os << value;
  return os.str();
}

} // namespace

std::ostream& operator<<(std::ostream& os, const Placement& p) {
  switch (p.kind()) {
    case Placement::Kind::kReplicate:
      return os << "R";
    case Placement::Kind::kShard:
      os << "S(" << p.dim();
      return print_unit(os, p) << ")";
    case Placement::Kind::kStridedShard:
      os << "SS(" << p.dim() << ", sf=" << p.split_factor();
      return print_unit(os, p) << ")";
    case Placement::Kind::kPartial:
      return os << "P(" << to_string(p.reduce_op()) << ")";
  }
  TORCH_INTERNAL_ASSERT(false, "a placement of no kind");
}

std::ostream& operator<<(std::ostream& os, const DeviceMesh& m) {
  if (!m.defined()) {
    return os << "(no mesh)";
  }
  os << "(";
  for (int64_t d = 0; d < m.ndim(); ++d) {
    os << (d == 0 ? "" : ", ");
    if (!m.mesh_dim_names().empty()) {
      os << m.mesh_dim_names()[static_cast<size_t>(d)] << "=";
    }
    os << m.size(d);
  }
  return os << ")";
}

std::ostream& operator<<(std::ostream& os, const Spec& s) {
  os << short_name(s.dtype()) << "[";
  print_list(os, s.sizes(), ", ");
  if (s.strides() != SizesRef(dtensor::contiguous_strides(s.sizes()))) {
    os << "; ";
    print_list(os, s.strides(), ", ");
  }
  os << "] on " << s.mesh() << ": ";
  print_list(os, s.placements(), " ");
  return os;
}

std::string to_string(const Placement& placement) {
  return print(placement);
}

std::string to_string(PlacementsRef placements) {
  std::ostringstream os;
  print_list(os, placements, " ");
  return os.str();
}

std::string to_string(const DeviceMesh& mesh) {
  return print(mesh);
}

std::string to_string(const Spec& spec) {
  return print(spec);
}

std::string short_name(at::ScalarType dtype) {
  const auto* found = std::ranges::find_if(
      kShortNames, [&](const auto& n) { return n.first == dtype; });
  return found == kShortNames.end() ? c10::toString(dtype) : found->second;
}

std::string shape_text(at::ScalarType dtype, SizesRef sizes) {
  std::ostringstream os;
  os << short_name(dtype) << "[";
  print_list(os, sizes, ", ");
  os << "]";
  return os.str();
}

} // namespace dtensor
