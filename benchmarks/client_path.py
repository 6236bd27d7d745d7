"""The way of a new user, timed: from two wheels and a model's config.json to more tokens a second.

    python -m benchmarks.client_path CONFIG --wheels DIR [--tokens 1] [--device cuda]

It makes a virtual environment that sees this Python's packages (torch, transformers), installs both distributions
from DIR without an index, tunes with `gemmtune model --for torch` into an empty database with nothing compiled, and
runs docs/examples/decode_step.py: the commands of docs/pytorch.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.cuda_tuned import machine, say
from benchmarks.report import RESULTS, write

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "decode_step.py"


def run(arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> float:
    """Runs a command in `folder`; returns its seconds. Raises SystemExit with its output if it fails."""
    say(" ".join(arguments))
    start = time.monotonic()
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    taken = time.monotonic() - start
    print(done.stdout, done.stderr, sep="\n", flush=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: exit code {done.returncode}")
    return taken


def see_packages(environment: Path) -> None:
    """Lets a virtual environment see the packages of this Python, which may live in one itself."""
    found = next(environment.glob("lib/python*/site-packages"))
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        sys.exit("torch is not installed for this Python")
    (found / "packages_of_torch.pth").write_text(f"{Path(torch.origin).parents[1]}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path, help="a model's config.json")
    parser.add_argument("--wheels", type=Path, required=True, help="both distributions and what they need")
    parser.add_argument("--tokens", default="1")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result")
    options = parser.parse_args(arguments)
    config, wheels = options.config.resolve(), options.wheels.resolve()
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("GEMMTUNE", "PYTHON"))
        }
        environment |= {
            "GEMMTUNE_CACHE_DIR": str(folder / "cache"),
            "GEMMTUNE_DATABASE_URL": f"sqlite:///{folder / 'gemmtune.sqlite'}",
        }
        python = str(folder / "venv" / "bin" / "python")
        pip = [python, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(wheels)]
        seconds["environment"] = run(
            [sys.executable, "-m", "venv", "--system-site-packages", "venv"], folder, environment
        )
        see_packages(folder / "venv")
        seconds["install"] = run([*pip, "gemmtune", "gemmtune-client"], folder, environment)
        seconds["model"] = run(
            [str(folder / "venv" / "bin" / "gemmtune"), "model", str(config), "--tokens", options.tokens,
             "--device", options.device, "--for", "torch", "-o", "files"], folder, environment,
        )  # fmt: skip
        bundle = next((folder / "files").glob("*.gtb"))
        batch = options.tokens.split(",")[0]
        seconds["program"] = run(
            [python, str(EXAMPLE), str(config), str(bundle), "--batch", batch, "--json", "figures.json"],
            folder, environment,
        )  # fmt: skip
        figures = json.loads((folder / "figures.json").read_text())
    write(
        "client-path",
        machine(options.device.split(":")[0], 1)[0].environment,
        {
            "what": "seconds of each command from two wheels to a faster decode step; tokens a second of torch and with rows",
            "model": config.stem, "tokens": options.tokens, "seconds": seconds, "total_seconds": sum(seconds.values()),
            "tokens_per_second": figures, "speedup": figures["gemmtune"] / figures["torch"],
        },
        options.output,
    )  # fmt: skip


if __name__ == "__main__":
    main()
