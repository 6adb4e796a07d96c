// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/report_text_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/debug/operator_observer_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/meta_impl.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace dtensor::detail {
namespace {

std::string operand_text(const at::Tensor& tensor) {
  return is_dtensor(tensor)
      ? shape_text(tensor) + " " + to_string(spec_of(tensor)->placements())
      : shape_text(tensor);
}

void note_mesh(OperatorText& text, const at::Tensor& tensor) {
  if (text.mesh.empty() && is_dtensor(tensor)) {
    text.mesh = to_string(spec_of(tensor)->mesh());
  }
}

void add_list(OperatorText& text, c10::ArrayRef<c10::IValue> list) {
  size_t count = 0;
  std::string first;
  for (const auto& item : list) {
    if (item.isTensor() && item.toTensor().defined()) {
      note_mesh(text, item.toTensor());
      first = ++count == 1 ? operand_text(item.toTensor()) : first;
    }
  }
  if (count > 0) {
    text.operands.push_back(
        c10::str(count, count == 1 ? " of " : " like ", first));
  }
}

} // namespace

std::string shape_text(const at::Tensor& tensor) {
  if (tensor.is_nested()) { // nested tensors have no sizes
    return short_name(tensor.scalar_type()) + "[nested]";
  }
  return dtensor::shape_text(tensor.scalar_type(), tensor.sizes());
}

OperatorText text_of(const at::RecordFunction& call) {
  OperatorText text;
  text.name = call.name();
  if (const std::string overload = call.overload_name(); !overload.empty()) {
    text.name += "." + overload;
  }
  for (const auto& input : inputs_of(call)) {
    if (input.isTensorList() || input.isOptionalTensorList()) {
      add_list(text, input.toListRef());
    } else if (input.isTensor() && input.toTensor().defined()) {
      note_mesh(text, input.toTensor());
      text.operands.push_back(operand_text(input.toTensor()));
    }
  }
  return text;
}

std::string aligned(const std::vector<TextRow>& rows, size_t first_number) {
  std::vector<size_t> width(rows.empty() ? 0 : rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t c = 0; c < width.size(); ++c) {
      width[c] = std::max(width[c], row[c].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < width.size(); ++c) {
      const std::string fill(width[c] - row[c].size(), ' ');
      line += c == 0 ? "" : "  ";
      line += c < first_number ? row[c] + fill : fill + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string json_lines(const std::vector<ReportJson>& items) {
  std::string text;
  for (const auto& item : items) {
    text += (text.empty() ? "\n  " : ",\n  ") +
        item.dump(-1, ' ', false, ReportJson::error_handler_t::replace);
  }
  return "[" + text + "\n]";
}

} // namespace dtensor::detail
