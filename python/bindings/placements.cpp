// SPDX-License-Identifier: BSD-3-Clause
// Conversions of placements.
#include "convert.h"

#include <dtensor/layout/text.h>
#include <pybind11/stl.h>

#include <unordered_map>

namespace dtensor::python {
namespace {

struct PlacementsHash {
  size_t operator()(const Placements& placements) const {
    size_t hash = 0;
    for (const Placement& p : placements) {
      hash = hash * 31 + p.hash();
    }
    return hash;
  }
};

py::object one_to_python(const Placement& p) {
  const PythonNames& names = python_names();
  const bool has_unit = p.unit() != 1;
  switch (p.kind()) {
    case Placement::Kind::kShard:
      return has_unit ? names.unit_shard(p.dim(), p.unit())
                      : names.shard(p.dim());
    case Placement::Kind::kStridedShard: {
      // pybind11 treats a variable with a keyword as a positional argument.
      using namespace py::literals;
      const auto factor = p.split_factor();
      return has_unit
          ? names.unit_strided_shard(
                p.dim(), "split_factor"_a = factor, "unit"_a = p.unit())
          : names.strided_shard(p.dim(), "split_factor"_a = factor);
    }
    case Placement::Kind::kPartial:
      return names.partial(std::string(to_string(p.reduce_op())));
    case Placement::Kind::kReplicate:
      break;
  }
  return names.replicate_value;
}

} // namespace

PythonNames& python_names() {
  static auto* const names = new PythonNames; // outlives the interpreter
  return *names;
}

py::object interned(const char* text) {
  return py::reinterpret_steal<py::object>(PyUnicode_InternFromString(text));
}

Placement to_placement(py::handle placement) {
  static auto* const dim = new py::object(interned("dim"));
  static auto* const split_factor = new py::object(interned("split_factor"));
  static auto* const unit = new py::object(interned("unit"));
  static auto* const reduce_op = new py::object(interned("reduce_op"));
  const PythonNames& names = python_names();
  const py::handle type = py::type::handle_of(placement);
  if (type.is(names.shard)) {
    return Shard(placement.attr(*dim).cast<int64_t>());
  }
  if (type.is(names.replicate)) {
    return Replicate();
  }
  if (type.is(names.partial)) {
    return Partial(placement.attr(*reduce_op).cast<std::string>());
  }
  if (type.is(names.strided_shard)) {
    return StridedShard(
        placement.attr(*dim).cast<int64_t>(),
        placement.attr(*split_factor).cast<int64_t>());
  }
  if (type.is(names.unit_shard)) {
    return Shard(
        placement.attr(*dim).cast<int64_t>(),
        placement.attr(*unit).cast<int64_t>());
  }
  if (type.is(names.unit_strided_shard)) {
    return StridedShard(
        placement.attr(*dim).cast<int64_t>(),
        placement.attr(*split_factor).cast<int64_t>(),
        placement.attr(*unit).cast<int64_t>());
  }
  return to_placement(names.plain_placement(placement));
}

Placements to_placements(py::handle placements) {
  Placements result;
  if (!placements.is_none()) {
    if (!py::isinstance<py::iterable>(placements)) {
      throw py::type_error(
          "[placements] expected a sequence of placements, got " +
          py::repr(py::type::handle_of(placements)).cast<std::string>() +
          ". Pass one placement for each mesh dimension.");
    }
    for (py::handle p : py::reinterpret_borrow<py::iterable>(placements)) {
      result.push_back(to_placement(p));
    }
  }
  return result;
}

std::optional<Placements> to_optional_placements(py::handle placements) {
  if (placements.is_none()) {
    return std::nullopt;
  }
  return to_placements(placements);
}

py::object to_python(PlacementsRef placements) {
  using Tuples = std::unordered_map<Placements, py::object, PlacementsHash>;
  static auto* const tuples = new Tuples; // outlives the interpreter
  py::object& tuple =
      (*tuples)[Placements(placements.begin(), placements.end())];
  if (!tuple) {
    py::tuple made(placements.size());
    for (size_t i = 0; i < placements.size(); ++i) {
      made[i] = one_to_python(placements[i]);
    }
    tuple = made;
  }
  return tuple;
}

} // namespace dtensor::python
