#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds the wheel of the Python package in build/wheel, from an installed
# library, installs it in a fresh virtual environment and runs a program there.
#
#   tools/wheel.sh <prefix of the installed library>
#
# The environment uses the torch of build/torch_prefix, which is not downloaded
# again.
set -euo pipefail
prefix=$(realpath "$1")
cd "$(dirname "$0")/.."
torch=$(cat build/torch_prefix)
site=$(dirname "$torch")
python=$site/../../../bin/python3
out=$PWD/build/wheel

rm -rf "$out/dist" "$out/venv" "$out/cpp"
"$python" -m pip install --quiet scikit-build-core
CMAKE_PREFIX_PATH="$prefix:$torch" "$python" -m pip wheel --quiet \
  --no-build-isolation --no-deps --wheel-dir "$out/dist" ./python

"$python" -m venv "$out/venv"
"$out/venv/bin/python" -m pip install --quiet --no-deps "$out"/dist/*.whl
packages=$("$out/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
echo "$site" >"$packages/torch.pth"

cd "$out" # not in the sources
OMP_NUM_THREADS=1 venv/bin/python -m torch.distributed.run \
  --standalone --nproc-per-node 2 -m dtensor \
  ../../python/tests/programs/processes.py dtensor ""
venv/bin/python - <<'PYTHON'
from importlib.metadata import requires

import dtensor
import torch
from dtensor import _C

loaded = {line.split()[-1] for line in open("/proc/self/maps") if "libdtensor" in line}
assert all(path.startswith(dtensor.__path__[0]) for path in loaded), loaded
assert dtensor.run_world(2, _C.get_rank) == [0, 1]
minor = ".".join(torch.__version__.split(".")[:2])
assert requires("dtensor-torch") == [f"torch=={minor}.*"]
PYTHON

# The first program of README.md in C++.
source=$OLDPWD
cmake -D source="$source" -D path="$out/hello.cpp" \
  -P "$source/tests/package/write_readme_program.cmake"
cmake -G Ninja -S "$source/tests/package/installed" -B "$out/cpp" \
  -D program="$out/hello.cpp" \
  -D CMAKE_PREFIX_PATH="$(venv/bin/python -m dtensor --cmake-prefix-path)"
cmake --build "$out/cpp"
"$out/cpp/hello"
echo "wheel: $(cd dist && ls) works in a fresh environment"
