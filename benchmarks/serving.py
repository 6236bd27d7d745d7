"""A server of the service in a process of its own, its memory and processor time, and a load of lookups.

    python -m benchmarks.serving --url URL --port PORT [--keys]

serves as `gemmtune serve --no-worker` does, with a route beside it that does nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from service.settings import Settings

#: Connections of a load of lookups.
CONNECTIONS = 16
_READY_SECONDS = 60.0


def run_server(url: str, port: int, keys: bool) -> None:
    """The service as `gemmtune serve --no-worker` runs it, plus a route that does nothing."""
    import uvicorn  # noqa: PLC0415

    from service.app import create_app  # noqa: PLC0415
    from service.protocol import bounded  # noqa: PLC0415
    from service.serve import bounds_of, keep_loaded  # noqa: PLC0415

    settings = Settings(database_url=url, keys=keys)
    app = create_app(settings)

    @app.get("/empty")
    async def empty() -> dict[str, str]:
        return {}

    keep_loaded(app)
    uvicorn.run(
        app, port=port, log_level="error", access_log=False, loop="uvloop", http=bounded(bounds_of(settings))
    )


@contextmanager
def serving(url: str, *options: str) -> Iterator[tuple[str, int]]:
    """Runs a server; yields its address and process id."""
    port = random.randint(20000, 40000)
    command = [sys.executable, "-m", "benchmarks.serving", "--url", url, "--port", str(port), *options]
    process = subprocess.Popen(command)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + _READY_SECONDS
        while not _ready(address):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server at {address} does not become ready")
            time.sleep(0.05)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def _ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def resident(pid: int) -> float:
    """Peak resident memory in MiB."""
    words = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", words)
    assert found is not None
    return int(found.group(1)) / 1024


# ---- a load --------------------------------------------------------------------------------------

_SCRIPT = """
local paths = {}
for line in io.lines("%s") do paths[#paths + 1] = line end
local next = 0
request = function()
  next = next %% #paths + 1
  return wrk.format("GET", paths[next], {%s})
end
local bad = 0
done = function(summary, latency, requests)
  io.write(string.format("errors %%d\\n", summary.errors.status + summary.errors.connect + summary.errors.read))
  io.write(string.format("p50_us %%d p99_us %%d\\n", latency:percentile(50), latency:percentile(99)))
end
"""


def wrk(address: str, paths: Path, seconds: int, key: str | None = None) -> dict[str, float]:
    if shutil.which("wrk") is None:
        sys.exit("wrk is missing: apt-get install wrk")
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        headers = "" if key is None else f'["Authorization"] = "Bearer {key}"'
        script.write(_SCRIPT % (paths, headers))
        script.flush()
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", script.name, address]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    tail = re.search(r"p50_us (\d+) p99_us (\d+)", text)
    errors = re.search(r"errors (\d+)", text)
    if not (rate and tail and errors):
        sys.exit(text)
    if int(errors.group(1)):
        sys.exit(f"{errors.group(1)} requests failed:\n{text}")
    return {
        "per_second": float(rate.group(1)),
        "p50_us": float(tail.group(1)),
        "p99_us": float(tail.group(2)),
    }


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Serves; the module's docstring has the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--keys", action="store_true")
    options = parser.parse_args()
    run_server(options.url, options.port, options.keys)


if __name__ == "__main__":
    main()
