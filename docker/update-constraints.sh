#!/usr/bin/env bash
# Writes docker/constraints.txt: the newest versions that pyproject.toml allows, resolved in a fresh environment.
# Run it with the image's Python version: PYTHON=python3.11 docker/update-constraints.sh
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
python="$work/venv/bin/python"
"$python" - >"$work/requirements.txt" <<'PY'
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
print(*project["build-system"]["requires"], *project["project"]["dependencies"], sep="\n")
PY
"$python" -m pip install -qq --disable-pip-version-check --no-cache-dir --only-binary=:all: \
    --requirement "$work/requirements.txt"
{
  echo "# The exact versions that the images install. Written by docker/update-constraints.sh, with"
  echo "# $("$python" --version | cut -d. -f1,2): the newest that pyproject.toml allowed."
  "$python" -m pip freeze --all --disable-pip-version-check | grep -v '^pip=='
} >"$work/constraints.txt"
mv "$work/constraints.txt" docker/constraints.txt
