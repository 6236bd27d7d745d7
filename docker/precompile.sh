#!/bin/sh
# Compiles the shipped portfolio's kernels for one vendor (cuda, hip or cpu) into the image's cache, so that a first
# tuning begins with compiled kernels. The compilers need no GPU. Files belong to the user gemmtune afterwards.
set -eu
vendor=$1
targets=$(gemmtune portfolio show --json | python -c '
import json, sys
print(*sorted({g["target"] for g in json.load(sys.stdin)["groups"] if g["vendor"] == sys.argv[1]}))' "$vendor")
[ -n "$targets" ] || echo "the portfolio has no kernels for $vendor yet"
for target in $targets; do
  gemmtune kernels precompile --portfolio --arch "$target"
done
chown -R gemmtune:gemmtune "$GEMMTUNE_CACHE_DIR"
