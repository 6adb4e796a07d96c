// SPDX-License-Identifier: BSD-3-Clause
// Builds a TorchScript model from statements selected by the bytes, and looks
// for a plan of it. Loading a TorchScript file is LibTorch's code, so it is not
// fuzzed here.
#include <dtensor/contrib/torchscript/parallelize_script.h>

#include "fuzz.h"

#include <ATen/ops/randn.h>
#include <torch/csrc/jit/api/module.h>

#include <array>
#include <string>
#include <string_view>

namespace {

// %a, %b and %c stand for variables, %n for a number.
constexpr std::array<std::string_view, 32> kStatements = {
    "%a = torch.linear(%b, self.up, None)",
    "%a = torch.linear(%b, self.down, None)",
    "%a = torch.linear(%b, self.up, self.bias)",
    "%a = torch.matmul(%b, self.down.t())",
    "%a = torch.relu(%b)",
    "%a = %b + %c",
    "%a = %b * %n",
    "%a = torch.softmax(%b, %n)",
    "%a = torch.cat([%b, %c], %n)",
    "%a, z = torch.split(%b, %n, %n)",
    "%a = torch.chunk(%b, %n, -1)[%n]",
    "%a = %b.transpose(0, %n)",
    "%a = %b.reshape([%n, -1])",
    "%a = %b.view(%b.size(0), %n)",
    "%a = %b[%n]",
    "%a = %b[%n:]",
    "%a = torch.zeros([%n, 8], dtype=torch.float64)",
    "%a = torch.rand([8])",
    "%a = self.bias",
    "%a[%n] = %b",
    "%a.add_(%b)",
    "if self.training:\n        %a = %b",
    "if %a.dim() == 2:\n        %a = %b\n    else:\n        %a = %c",
    "if %a.size(0) > %n:\n        %a = %b",
    "for i in range(%n):\n        %a = %a + %b",
    "while bool(%a.sum() > %n):\n        %a = %a - 1",
    "items = [%a, %b, %c]\n    %a = items[%n]",
    "pair = (%a, %b)\n    %c = pair[0]",
    "n = len([%a, %b]) * %n\n    %a = %a * n",
    "%a = torch.as_strided(%b, [%n, %n], [%n, 1])",
    "torch.save(%a, '/tmp/dtensor_fuzz_never')",
    "assert %a.dim() < %n"};

std::string statement(const uint8_t* bytes) {
  constexpr std::array<const char*, 3> kVariables = {"x", "y", "h"};
  std::string text;
  const auto form = kStatements[bytes[0] % kStatements.size()];
  for (size_t i = 0; i < form.size(); ++i) {
    if (form[i] != '%') {
      text += form[i];
      continue;
    }
    const char name = form[++i];
    if (name == 'n') {
      text += std::to_string(bytes[1] % 16);
    } else {
      const auto shift = 2 * (name - 'a');
      text += kVariables[static_cast<size_t>(bytes[2] >> shift) % 3];
    }
  }
  return "    " + text + "\n";
}

torch::jit::Module script_of(const uint8_t* bytes, size_t count) {
  torch::jit::Module script("__torch__.Fuzzed");
  const auto options = at::TensorOptions(at::kDouble);
  script.register_parameter("up", at::randn({24, 8}, options), false);
  script.register_parameter("down", at::randn({8, 24}, options), false);
  script.register_parameter("bias", at::randn({24}, options), false);
  script.register_attribute("training", c10::BoolType::get(), true);
  std::string code = "def forward(self, x):\n    y = x\n    h = x\n";
  for (size_t i = 0; i + 3 <= count && i < 60; i += 3) {
    code += statement(bytes + i);
  }
  script.define(code + "    return y\n");
  return script;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  std::optional<torch::jit::Module> script;
  try {
    script = script_of(bytes, count);
  } catch (const std::exception&) {
    return 0; // not a valid Python program either
  }
  dtensor::fuzz::expect_only_errors(
      "find_tp_plan", [&] { dtensor::find_tp_plan(*script); });
  return 0;
}
