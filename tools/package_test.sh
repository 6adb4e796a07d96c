#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs the packages of `make package` on a clean Debian root and builds and
# runs the first program of README.md with each of them. Needs to be root.
# Arguments are the packages (default: those of build/packages). The root is
# build/package_root, made with debootstrap; PACKAGE_ROOT names another. LibTorch
# is the one of build/torch_prefix, or TORCH; the root sees it as /opt/libtorch, and
# the CUDA libraries that pip installs beside it as /opt/nvidia.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "package_test: $*"; }
die() { say "$*" >&2; exit 1; }

# --- in the clean root -------------------------------------------------------

# Builds the program in /test with a CMAKE_PREFIX_PATH, and runs it on threads
# and on two processes.
build_and_run() {
  cmake -G Ninja -S /test/installed -B /test/build -D program=/test/hello.cpp \
    -D CMAKE_PREFIX_PATH="$1" >/test/build.log 2>&1 || die "$(cat /test/build.log)"
  grep 'Found dtensor' /test/build.log
  cmake --build /test/build >/test/build.log || die "$(cat /test/build.log)"
  (set -x && /test/build/hello)
  (set -x && LD_LIBRARY_PATH=/opt/libtorch/lib "$2" -n 2 /test/build/hello)
  rm -rf /test/build
}

# Expects the loader's error for a launcher without LibTorch.
expect_no_libtorch() {
  local text
  text=$("$1" --help 2>&1) && die "$1 found a LibTorch"
  [[ $text == *"error while loading shared libraries: lib"* ]] || die "$text"
  say "without LibTorch: $text"
}

test_archive() {
  mkdir -p /opt/dtensor
  tar -xzf "$1" -C /opt/dtensor --strip-components=1
  expect_no_libtorch /opt/dtensor/bin/dtensor-run
  build_and_run "/opt/dtensor;/opt/libtorch" /opt/dtensor/bin/dtensor-run
  rm -rf /opt/dtensor
  say "$(basename "$1") in a copy of LibTorch's folder"
  cp -rs /opt/libtorch /opt/both
  tar -xzf "$1" -C /opt/both --strip-components=1
  /opt/both/bin/dtensor-run -n 2 true
  rm -rf /opt/both
}

test_deb() {
  dpkg-deb --field "$1" Package Version Depends Suggests Conflicts Installed-Size
  dpkg --install "$1" | tail -n 1
  expect_no_libtorch dtensor-run
  build_and_run /opt/libtorch dtensor-run
  dpkg --purge "$(dpkg-deb --field "$1" Package)" | tail -n 1
  [[ -z $(find /usr /etc /var -name '*dtensor*' -print -quit) ]] ||
    die "files are left after dpkg --purge"
}

if [[ ${1:-} == --inside ]]; then
  for package in "${@:2}"; do
    say "$(basename "$package"), $(stat -c %s "$package") bytes"
    case $package in
      *.deb) test_deb "$package" ;;
      *.tar.gz) test_archive "$package" ;;
      *) die "$package is neither a .deb nor a .tar.gz" ;;
    esac
  done
  exit
fi

# --- on this machine ---------------------------------------------------------

torch=${TORCH:-$(cat build/torch_prefix)}
nvidia=$(dirname "$torch")/nvidia
root=${PACKAGE_ROOT:-build/package_root}
packages=("$@")
if ((${#packages[@]} == 0)); then
  packages=(build/packages/*.tar.gz build/packages/*.deb)
fi
((EUID == 0)) || die "needs to be root, to make and enter a clean root"

# Fails if a file of the folder contains a path of this machine, or a run path
# that is not relative.
check_relocatable() {
  local file found
  if found=$(grep -rlF -e "$PWD" -e "$torch" -e "$nvidia" "$1"); then
    die "paths of this machine in: $found"
  fi
  while read -r file; do
    found=$(readelf -d "$file" 2>/dev/null | sed -nE 's/.*R(UN)?PATH.*\[(.*)\]/\2/p')
    [[ -z $found || $found == '$ORIGIN' || $found == '$ORIGIN/../lib' ]] ||
      die "run path $found in $file"
  done < <(find "$1" -type f \( -name '*.so*' -o -path '*/bin/*' \))
}

if [[ ! -x $root/usr/bin/cmake ]]; then
  command -v debootstrap >/dev/null || die "needs debootstrap: apt-get install debootstrap"
  say "making a clean Debian 12 in $root"
  debootstrap --variant=minbase --include=g++,cmake,ninja-build bookworm "$root" \
    "${PACKAGE_MIRROR:-http://deb.debian.org/debian}" >"$root.log" || die "see $root.log"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
inside=()
mkdir -p "$work/packages"
for package in "${packages[@]}"; do
  name=$(basename "$package")
  mkdir "$work/files"
  case $name in
    *.deb) dpkg-deb --extract "$package" "$work/files" ;;
    *) tar -xzf "$package" -C "$work/files" ;;
  esac
  check_relocatable "$work/files"
  say "$name: $(du -sh --apparent-size "$work/files" | cut -f1) installed, no path of this machine"
  rm -r "$work/files"
  cp "$package" "$work/packages"
  inside+=("/test/packages/$name")
done
cp -r tests/package/installed "$work"
cp "$0" "$work/package_test.sh"
cmake -D source="$PWD" -D path="$work/hello.cpp" -P tests/package/write_readme_program.cmake

mkdir -p "$root/test" "$root/opt/libtorch" "$root/opt/nvidia"
unshare --mount --pid --fork bash -euc '
  root=$1; mount --make-rprivate /
  mount --bind "$2" "$root/test"
  mount --bind "$3" "$root/opt/libtorch"
  mount -o remount,bind,ro "$root/opt/libtorch"
  if [[ -d $4 ]]; then
    mount --bind "$4" "$root/opt/nvidia"
    mount -o remount,bind,ro "$root/opt/nvidia"
  fi
  mount -t proc proc "$root/proc"
  mount -t tmpfs tmpfs "$root/dev/shm" 2>/dev/null || true
  exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C \
    bash /test/package_test.sh --inside "${@:5}"' \
  _ "$root" "$work" "$torch" "$nvidia" "${inside[@]}"
say "passed: ${#packages[@]} packages"
