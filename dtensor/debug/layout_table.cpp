// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/layout_table.h>

#include <c10/util/StringUtil.h>
#include <dtensor/debug/module_tracker_impl.h>
#include <dtensor/debug/report_text_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/plan/module_names_impl.h>
#include <dtensor/tensor/dtensor.h>

#include <unordered_map>
#include <vector>

namespace dtensor {
namespace {

class LayoutTable {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    const auto [first, is_new] =
        names_.emplace(tensor.unsafeGetTensorImpl(), name);
    if (!is_new) {
      rows_.push_back(
          {name,
           detail::shape_text(tensor),
           "is " + first->second,
           "",
           "",
           "",
           ""});
      return;
    }
    const auto item = static_cast<int64_t>(tensor.element_size());
    std::string layout = "plain";
    std::string mesh;
    Sizes here(tensor.sizes().begin(), tensor.sizes().end());
    if (is_dtensor(tensor)) {
      const auto spec = DTensor(tensor).spec();
      layout = to_string(spec->placements());
      mesh = to_string(spec->mesh());
      here = spec->local_sizes();
    }
    rows_.push_back(
        {name,
         detail::shape_text(tensor),
         layout,
         mesh,
         "[" + c10::Join(", ", here) + "]",
         c10::str(numel(here) * item),
         c10::str(tensor.numel() * item)});
    here_ += numel(here) * item;
    global_bytes_ += tensor.numel() * item;
  }

  std::string text() {
    rows_.push_back(
        {"total", "", "", "", "", c10::str(here_), c10::str(global_bytes_)});
    return detail::aligned(rows_, /*first_number=*/5);
  }

 private:
  std::vector<detail::TextRow> rows_ = {
      {"parameter", "tensor", "layout", "mesh", "here", "bytes here", "bytes"}};
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  int64_t here_ = 0;
  int64_t global_bytes_ = 0;
};

} // namespace

std::string layout_table(const torch::nn::Module& model) {
  LayoutTable table;
  for (const auto& module : detail::modules_of(model)) {
    for (const auto* tensors : {&module.parameters, &module.buffers}) {
      for (const auto& [name, tensor] : *tensors) {
        table.add(detail::full_name(module.name, name), tensor);
      }
    }
  }
  return table.text();
}

} // namespace dtensor
