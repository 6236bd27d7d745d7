#!/usr/bin/env bash
# The Python environment of the cuda image on a GPU machine without containers and without a network: its wheels, in
# the versions of constraints-cuda.txt, are fetched here, carried there, and installed into a folder of their own.
#
#   docker/cuda-environment.sh wheels FOLDER [--all] [pip's options]   fetches the wheels and builds gemmtune's
#   FOLDER/cuda-environment.sh install FOLDER TARGET                   there: installs them; TARGET/gemmtune runs it
#   FOLDER/cuda-environment.sh check TARGET                            there: compares the versions with the image's
#   docker/cuda-environment.sh list [--all]                            the packages, name==version
#
# Without --all torch, what torch brings, and CUDA's libraries are left out: the machine has them. Another Python than
# this one: --python-version 3.12 --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64
# PYTHON names the interpreter, default python3; on the GPU machine the one that has torch.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
# What torch's wheels bring. nvidia-ml-py and nvidia-matmul-heuristics are Python packages that torch does not have.
with_torch='^(torch|triton|cuda-toolkit|nvidia-.*|filelock|fsspec|mpmath|networkx|setuptools|sympy)=='
but='^(nvidia-ml-py|nvidia-matmul-heuristics)=='

usage() {
  sed -n '/^#   /s/^#   //p' "$0" >&2
  exit 2
}

packages() { # --all or nothing
  grep -v '^#' "$here/constraints-cuda.txt" | while read -r pin; do
    if [ "${1:-}" = --all ] || ! grep -Eq "$with_torch" <<<"$pin" || grep -Eq "$but" <<<"$pin"; then
      echo "$pin"
    fi
  done
}

wheels() { # folder, perhaps --all, pip's options
  local folder=$1 all=
  shift
  if [ "${1:-}" = --all ]; then
    all=--all
    shift
  fi
  mkdir -p "$folder"
  packages $all >"$folder/packages.txt"
  cp "$here/constraints-cuda.txt" "$here/cuda-environment.sh" "$folder"
  local source # a copy: setuptools would take what an earlier build left beside the source
  source=$(mktemp -d)
  (cd "$here/.." && cp -r pyproject.toml README.md LICENSE backends db service tuners "$source")
  "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$folder" "$source"
  rm -r "$source"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$folder" \
      "$@" --requirement "$folder/packages.txt"
  du -sh "$folder"
}

install() { # folder of wheels, target
  mkdir -p "$2"
  local target
  target=$(cd "$2" && pwd)
  "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --upgrade --target "$target" \
      "$1"/*.whl
  cp "$here/constraints-cuda.txt" "$target"
  # The interpreter's own packages, torch among them, come after the folder's; the current folder (-P) is not searched.
  printf '#!/bin/sh\nPYTHONPATH=%q${PYTHONPATH:+:$PYTHONPATH} exec %q -P -m service.entry "$@"\n' \
      "$target" "$(command -v "$python")" >"$target/gemmtune"
  chmod +x "$target/gemmtune"
}

check() { # target
  PYTHONPATH="$1" "$python" - "$1/constraints-cuda.txt" <<'PY'
import sys
from importlib import metadata

differ = 0
for line in open(sys.argv[1]):
    name, _, wanted = line.strip().partition("==")
    if not wanted:
        continue
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        found = "missing"
    if found.partition("+")[0] != wanted:  # a build of another index is called 2.11.0+cu130
        differ += 1
        print(f"{name}: {found}; the image has {wanted}")
print("as in the image" if not differ else f"{differ} packages differ from the image's")
sys.exit(1 if differ else 0)
PY
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
list) packages "$@" ;;
wheels) [ $# -ge 1 ] || usage; wheels "$@" ;;
install) [ $# -eq 2 ] || usage; install "$@" ;;
check) [ $# -eq 1 ] || usage; check "$@" ;;
*) usage ;;
esac
