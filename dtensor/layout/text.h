// SPDX-License-Identifier: BSD-3-Clause
// The text notation for layouts, which errors, plans and golden tests use.
// Layouts can be printed and parsed.
//
//   f32[8, 6] on (dp=2, tp=4): S(0) P(sum)
//
// Placements: R, S(dim), S(dim, u=unit), SS(dim, sf=n), SS(dim, sf=n, u=unit),
// P(op). A mesh without names prints only its sizes: (2, 4). Dtypes have short
// names: f32 f64 bf16 f16 i64 i32 i16 i8 u8 bool c64 c128.
#pragma once

#include <c10/core/ScalarType.h>
#include <dtensor/layout/spec.h>

#include <iosfwd>
#include <string>

namespace dtensor {

/// "S(0)".
DTENSOR_API std::string to_string(const Placement& placement);
/// "S(0) P(sum)".
DTENSOR_API std::string to_string(PlacementsRef placements);
/// "(dp=2, tp=4)".
DTENSOR_API std::string to_string(const DeviceMesh& mesh);
/// Returns the full notation. Non-contiguous strides are printed too:
/// "f32[8, 6; 1, 8] on ...".
DTENSOR_API std::string to_string(const Spec& spec);
/// "f32", "i64"; the ATen name of dtypes without a short name.
DTENSOR_API std::string short_name(at::ScalarType dtype);
/// "f32[8, 6]".
DTENSOR_API std::string shape_text(at::ScalarType dtype, SizesRef sizes);

/// Print the to_string() notation.
DTENSOR_API std::ostream& operator<<(std::ostream& os, const Placement& p);
DTENSOR_API std::ostream& operator<<(std::ostream& os, const DeviceMesh& m);
DTENSOR_API std::ostream& operator<<(std::ostream& os, const Spec& s);

/// Parses the output of to_string: "S(0) P(sum)", optionally separated by
/// commas. Throws a ValueError with the position of the first error in the
/// text.
DTENSOR_API Placements parse_placements(std::string_view text);

/// A layout parsed from text. spec() returns it on a pure mesh.
struct DTENSOR_API ParsedSpec {
  at::ScalarType dtype = at::kFloat;
  Sizes sizes;
  Sizes strides; // row-major when the text has none
  std::vector<int64_t> mesh_shape;
  std::vector<std::string> mesh_dim_names;
  Placements placements;

  /// Returns the spec on a pure mesh of mesh_shape over ranks 0..n-1, seen from
  /// `rank`.
  SpecPtr spec(int64_t rank = 0) const;
};

/// Parses the output of to_string(Spec): "f32[8, 6] on (tp=2): S(0)". Throws a
/// ValueError with the position of the first error in the text.
DTENSOR_API ParsedSpec parse_spec(std::string_view text);

} // namespace dtensor
