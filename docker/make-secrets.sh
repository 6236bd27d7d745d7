#!/usr/bin/env bash
# Writes the secrets that compose.yaml mounts, each a file of a folder (default: docker/secrets): new passwords of
# the database and of Grafana, and an empty file for Prometheus's key. What is there stays as it is.
set -euo pipefail
folder=${1:-$(dirname "$0")/secrets}

mkdir -p "$folder"
chmod 0700 "$folder" # the files are readable: containers read them as users of their own
write() { # file, value
  [ -e "$folder/$1" ] || (umask 0222 && printf '%s' "$2" >"$folder/$1")
}
password() {
  od -An -N 24 -t x1 /dev/urandom | tr -d ' \n'
}

write database_password "$(password)"
write database_url "postgresql://gemmtune:$(cat "$folder/database_password")@database/gemmtune"
write grafana_password "$(password)"
write prometheus_key ""
chmod u+w "$folder/prometheus_key"
echo "$folder: $(ls "$folder" | paste -sd ' ')"
