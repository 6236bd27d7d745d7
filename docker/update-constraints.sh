#!/usr/bin/env bash
# Writes the exact versions that the images install, the newest that pyproject.toml allows:
#   docker/constraints.txt       the application's dependencies, for every image
#   docker/constraints-cuda.txt  all packages of the cuda image: those, and the extras cuda, triton, torch and
#                                heuristics. Only metadata is read: the CUDA wheels are not downloaded.
# Run it with the images' Python version: PYTHON=python3.11 docker/update-constraints.sh
# --cuda writes the second file alone.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
python="$work/venv/bin/python"

requirements() { # what of pyproject.toml, by name of the extra; "" is the application's own
  "$python" - "$@" <<'PY'
import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
found = project["project"]["dependencies"]
for extra in sys.argv[1:]:
    extras = project["project"]["optional-dependencies"]
    found = found + (project["build-system"]["requires"] if extra == "build" else extras[extra])
print(*found, sep="\n")
PY
}

header() {
  echo "# The exact versions that $1 installs. Written by docker/update-constraints.sh, with"
  echo "# $("$python" --version | cut -d. -f1,2): the newest that pyproject.toml allowed."
}

if [ "${1:-}" != --cuda ]; then
  requirements build >"$work/requirements.txt"
  "$python" -m pip install -qq --disable-pip-version-check --no-cache-dir --only-binary=:all: \
      --requirement "$work/requirements.txt"
  {
    header "every image"
    "$python" -m pip freeze --all --disable-pip-version-check | grep -v '^pip=='
  } >"$work/constraints.txt"
  mv "$work/constraints.txt" docker/constraints.txt
  rm -r "$work/venv"
  "${PYTHON:-python3}" -m venv "$work/venv"
fi

requirements cuda triton torch heuristics >"$work/requirements.txt"
grep -v '^setuptools==' docker/constraints.txt >"$work/base.txt" # builds only, and torch has its own bounds
"$python" -m pip install -qq --disable-pip-version-check --dry-run --ignore-installed --report "$work/report.json" \
    --only-binary=:all: --constraint "$work/base.txt" --requirement "$work/requirements.txt"
{
  header "the cuda image"
  "$python" - "$work/report.json" <<'PY'
import json
import sys

with open(sys.argv[1]) as file:
    found = [row["metadata"] for row in json.load(file)["install"]]
for one in found:
    if one["name"] == "torch" and one["version"].endswith("+cpu"):
        sys.exit(f"pip found torch {one['version']}, which has no CUDA: let it look at PyPI alone "
                 "(PIP_CONFIG_FILE=/dev/null)")
for one in sorted(found, key=lambda one: one["name"].lower()):
    print(f"{one['name']}=={one['version']}")
PY
} >"$work/constraints-cuda.txt"
mv "$work/constraints-cuda.txt" docker/constraints-cuda.txt
