// SPDX-License-Identifier: BSD-3-Clause
#include "twin.h"

#include <algorithm>

namespace dtensor::randomized {
namespace {

c10::TypeKind kind_of(const c10::Argument& argument) {
  const auto& type = argument.type();
  const auto* optional = type->castRaw<c10::OptionalType>();
  return optional == nullptr ? type->kind()
                             : optional->getElementType()->kind();
}

// True for tolerance arguments. They stay nonzero, because a zero tolerance
// requires equal bits, which sums over ranks do not give.
bool is_tolerance(const c10::Argument& argument) {
  const auto& name = argument.name();
  return name == "rtol" || name == "atol" || name == "rcond" || name == "tol";
}

std::vector<c10::IValue> complex_others() {
  return {c10::complex<double>(1, 1), c10::complex<double>(0, 0)};
}

// Returns other numbers of the same type, because a different type would be
// noticed without the value. Zero is last, and thus first in backward order: a
// decision for another number is often also right for zero.
std::vector<c10::IValue> others_than(const c10::IValue& number) {
  if (number.isBool()) {
    return {!number.toBool()};
  }
  if (number.isInt()) {
    const auto n = number.toInt();
    return n == 0 ? std::vector<c10::IValue>{1}
                  : std::vector<c10::IValue>{-n, 0};
  }
  if (number.isDouble()) {
    const auto n = number.toDouble();
    return n == 0 ? std::vector<c10::IValue>{1.0}
                  : std::vector<c10::IValue>{-n, 0.0};
  }
  return complex_others();
}

} // namespace

bool is_complex(const Call& call) {
  const auto tensors = tensors_in(call.arguments);
  return std::any_of(tensors.begin(), tensors.end(), [](const auto& t) {
    return t.is_complex();
  });
}

std::vector<Call> twins_of(const Call& call) {
  std::vector<Call> twins;
  const bool among_complex = is_complex(call);
  const auto& arguments = call.op.schema().arguments();
  const auto count = call.arguments.size();
  for (size_t k = 0; k < count; ++k) {
    const auto i = (k + call.number) % count; // each is the last one once
    const auto& number = call.arguments[i];
    const auto kind = kind_of(arguments[i]);
    const bool any = kind == c10::TypeKind::NumberType;
    if (!(any || kind == c10::TypeKind::FloatType) || !number.isScalar() ||
        is_tolerance(arguments[i])) {
      continue;
    }
    for (const auto& other :
         any&& among_complex ? complex_others() : others_than(number)) {
      if (!(other == number)) {
        twins.push_back(call);
        twins.back().arguments[i] = other;
      }
    }
  }
  return twins;
}

} // namespace dtensor::randomized
