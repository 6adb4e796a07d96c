// SPDX-License-Identifier: BSD-3-Clause
// Calls LibTorch's libcudart.
#include <cuda_runtime_api.h>

int main() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) != 0 || version != 99010;
}
