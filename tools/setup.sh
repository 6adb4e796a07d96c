#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs missing requirements of a build, and prints one line for each. Prints
# nothing on a machine that has everything. Arguments are additional packages of
# the distribution. `tools/setup.sh --docs` installs only what `make docs` needs.
#
# LibTorch is the first of: CMAKE_PREFIX_PATH; the torch package of python3, if
# it is 2.11 or newer; the project's own .venv, created here with PyTorch's build
# for the CPU if its index can be reached, and otherwise with pip's own torch. A
# build for CUDA needs no CUDA toolkit. The folder of LibTorch is written to
# build/torch_prefix, which CMake reads.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly oldest_torch=2.11 torch_range='torch>=2.11,<2.16'
readonly cpu_index=https://download.pytorch.org/whl/cpu
say() { echo "setup: $*"; }
die() { say "$*" >&2; exit 1; }

# --- packages of the distribution --------------------------------------------

installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q ' installed'; }

apt_install() {
  local missing=() package sudo=()
  for package in "$@"; do
    installed "$package" || missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then return; fi
  if ((EUID != 0)); then sudo=(sudo); fi
  if ((EUID != 0)) && ! command -v sudo >/dev/null; then
    die "needs ${missing[*]}. Install them as root: apt-get install ${missing[*]}"
  fi
  say "installing ${missing[*]} with apt-get"
  "${sudo[@]}" apt-get -qq update
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install --no-install-recommends -y "${missing[@]}" >/dev/null
}

# The tools of the documentation site, in the versions of docs/requirements.txt.
setup_docs() {
  local venv=build/docs/venv
  if command -v apt-get >/dev/null; then apt_install doxygen python3 python3-venv; fi
  if ! cmp -s docs/requirements.txt "$venv/requirements.txt"; then
    say "making $venv with Sphinx"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --requirement docs/requirements.txt
    cp docs/requirements.txt "$venv/requirements.txt"
  fi
}

if [[ ${1:-} == --docs ]]; then
  setup_docs
  exit
fi

if command -v apt-get >/dev/null; then
  apt_install g++ cmake ninja-build ccache libgtest-dev libgmock-dev \
    libbenchmark-dev nlohmann-json3-dev libcli11-dev libpcre2-dev \
    libutf8proc-dev libxxhash-dev "$@"
else
  for tool in c++ cmake ninja; do
    command -v "$tool" >/dev/null || die "$tool is missing, and apt-get is not available to install it"
  done
fi

# --- LibTorch ----------------------------------------------------------------

# Prints the first entry of CMAKE_PREFIX_PATH that has Torch.
torch_of_prefix_path() {
  local entries entry
  IFS=':;' read -ra entries <<<"${CMAKE_PREFIX_PATH:-}"
  for entry in "${entries[@]}"; do
    for entry in "$entry" "${entry%/share/cmake}"; do
      if [[ -f $entry/share/cmake/Torch/TorchConfig.cmake ]]; then
        echo "$entry"
        return
      fi
    done
  done
  return 1
}

# Prints the torch of a python command, if it is new enough.
torch_of() {
  local prefix
  prefix=$("$@" - "$oldest_torch" 2>/dev/null <<'PYTHON'
import importlib.metadata, importlib.util, os, sys
number = lambda v: [int(x) for x in v.split("+")[0].split(".")[:2]]
if number(importlib.metadata.version("torch")) < number(sys.argv[1]):
    sys.exit(1)
print(os.path.dirname(importlib.util.find_spec("torch").origin))
PYTHON
  ) || return 1
  [[ -f $prefix/share/cmake/Torch/TorchConfig.cmake ]] || return 1
  echo "$prefix"
}

# Prints the version and the kind of the torch in .venv, and the size of .venv.
describe_venv() {
  local file=$1/version.py version cuda
  version=$(sed -nE "s/^__version__ = '([^']+)'/\1/p" "$file")
  cuda=$(sed -nE "s/^cuda.*'([0-9.]+)'/\1/p" "$file")
  echo "torch $version, built for ${cuda:+CUDA }${cuda:-the CPU}, $(du -sh .venv | cut -f1)B"
}

make_venv() {
  if ! python3 -c 'import ensurepip' 2>/dev/null; then
    command -v apt-get >/dev/null || die "python3 has no venv module: install it"
    apt_install python3 python3-venv
  fi
  say "making .venv with $torch_range (some minutes)"
  python3 -m venv .venv
  local pip=(.venv/bin/python -m pip install --quiet)
  # Does not wait long for an index that a firewall hides.
  "${pip[@]}" --timeout 15 --retries 1 --index-url "$cpu_index" "$torch_range" 2>/dev/null || {
    say "no build for the CPU from $cpu_index: installing pip's own torch (up to 6 GB)"
    "${pip[@]}" "$torch_range"
    # NCCL also needs the headers in crt (1 MB).
    if .venv/bin/python -m pip show --quiet cuda-toolkit 2>/dev/null; then
      "${pip[@]}" 'cuda-toolkit[crt]' || say "NCCL is disabled without its headers"
    fi
  }
}

if prefix=$(torch_of_prefix_path); then
  origin=CMAKE_PREFIX_PATH
elif prefix=$(torch_of python3); then
  origin=python3
else
  origin=.venv
  if ! prefix=$(torch_of .venv/bin/python -I); then
    make_venv
    prefix=$(torch_of .venv/bin/python -I) ||
      die "no usable torch in .venv. Name a LibTorch in CMAKE_PREFIX_PATH."
    say "installed $(describe_venv "$prefix")"
  fi
fi

# Packages for PyTorch's own samples (tests/randomized/op_samples), the length of
# functions, file formats, and notebooks. Without them these tests are skipped.
if [[ $origin == .venv ]] &&
  ! { .venv/bin/python -c 'import expecttest, gguf, ipykernel, lizard, nbclient, numpy, pytest, safetensors, sentencepiece' 2>/dev/null &&
    [[ -x .venv/bin/clang-format ]]; }; then
  say "installing numpy, expecttest, lizard, pytest, gguf, safetensors, sentencepiece, nbclient, ipykernel and clang-format in .venv"
  .venv/bin/python -m pip install --quiet \
    numpy expecttest pytest gguf safetensors sentencepiece nbclient ipykernel lizard clang-format==14.0.6 ||
    say "without them, lints and the test of operator samples are skipped"
fi

mkdir -p build
if [[ $(cat build/torch_prefix 2>/dev/null) != "$prefix" ]]; then
  say "LibTorch from $origin: $prefix"
  echo "$prefix" >build/torch_prefix
fi
