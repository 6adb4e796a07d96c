// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/op_call.h>

#include <c10/core/WrapDimMinimal.h>
#include <dtensor/error.h>
#include <dtensor/ops/path/stack_impl.h>

#include <algorithm>
#include <numeric>

namespace dtensor {

size_t OpCall::arg_index(std::string_view name) const {
  const auto index = schema.argumentIndexWithName(name);
  DTENSOR_CHECK_VALUE(
      index.has_value(),
      "[{}] its rule reads an argument \"{}\", but its schema is {}. Use a "
      "name from the schema, or check has_arg() first.",
      schema.name(),
      name,
      schema);
  return static_cast<size_t>(*index);
}

bool OpCall::has_arg(std::string_view name) const {
  return schema.argumentIndexWithName(name).has_value();
}

int OpCall::input_index(std::string_view name) const {
  const auto arg = static_cast<int>(arg_index(name));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].arg == arg) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::vector<int64_t> OpCall::ints_arg(std::string_view name) const {
  const auto& value = arg(name);
  if (value.isNone()) {
    return {};
  }
  if (value.isInt()) {
    return {value.toInt()};
  }
  return value.toIntVector();
}

int64_t OpCall::dim_arg(std::string_view name, int64_t ndim) const {
  return c10::maybe_wrap_dim(int_arg(name), ndim);
}

std::vector<int64_t> OpCall::dims_arg(std::string_view name, int64_t ndim)
    const {
  auto dims = has_arg(name) ? ints_arg(name) : std::vector<int64_t>{};
  if (dims.empty()) {
    dims.resize(static_cast<size_t>(ndim));
    std::iota(dims.begin(), dims.end(), 0);
    return dims;
  }
  for (auto& d : dims) {
    d = c10::maybe_wrap_dim(d, ndim);
  }
  std::ranges::sort(dims);
  dims.erase(std::unique(dims.begin(), dims.end()), dims.end());
  return dims;
}

std::string OpCall::name() const {
  return detail::name_of(schema.operator_name());
}

} // namespace dtensor
