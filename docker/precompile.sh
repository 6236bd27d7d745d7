#!/bin/sh
# Compiles the shipped portfolio's kernels for one vendor (cuda, hip or cpu) into the image's cache, so that a first
# tuning begins with compiled kernels. The compilers need no GPU. Files belong to the user gemmtune afterwards.
set -eu
vendor=$1
targets=$(gemmtune portfolio show --json | python -c '
import json, sys
print(*sorted({g["target"] for g in json.load(sys.stdin)["groups"] if g["vendor"] == sys.argv[1]}))' "$vendor")
if [ -z "$targets" ]; then
  cat <<EOF
No kernels are compiled into this image: the shipped portfolio is built from measurements, and has none of $vendor
devices. Workers compile what they tune, so first tunings take longer. To begin with compiled kernels, tune on such a
device, run \`gemmtune portfolio build --output FILE\`, and set GEMMTUNE_PORTFOLIO=FILE for its workers, which compile
its members while they are idle. \`gemmtune kernels precompile --portfolio --file FILE --arch ARCH\` compiles them at
once.
EOF
fi
for target in $targets; do
  gemmtune kernels precompile --portfolio --arch "$target"
done
chown -R gemmtune:gemmtune "$GEMMTUNE_CACHE_DIR"
