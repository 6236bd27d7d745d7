"""Our own kernels under NVIDIA's compute-sanitizer, on the first GPU of this machine.

    python -m benchmarks.sanitizer                    every family, memcheck, racecheck and synccheck
    python -m benchmarks.sanitizer --families gemv    one of them
    python -m benchmarks.sanitizer launch --pairs F   the process under the sanitizer: launches the pairs in F

Takes, for each family, C++ and Triton, its likeliest candidate for every problem of sanitizer_pairs.py that
it supports, and some drawn from its whole legal space. All are compiled first; then one process per family
and tool loads and launches them. Every operand is an allocation of its own, exactly as large as its layout.
initcheck is not run: padding stays uninitialised. Exits with 1 if any run was not clean.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from backends.environment import Environment
from backends.registry import backend
from benchmarks.cuda_tuned import kernel_cache, machine, say
from benchmarks.report import RESULTS, write
from benchmarks.sanitizer_pairs import FAMILIES, compiled, launch_file, sampled, to_json

TOOLS = ("memcheck", "racecheck", "synccheck")
#: The sanitizer's exit status if it found something.
FOUND = 9
#: Lines of a report that a document keeps.
REPORT_LINES = 40
#: Bytes of padding between allocations under memcheck: an access far out of bounds must not land in the next
#: one.
PADDING = 2**16
#: Where the CUDA toolkit installs the sanitizer, tried if it is not on PATH.
ELSEWHERE = "/usr/local/cuda/bin/compute-sanitizer"
_ROOT = Path(__file__).parent.parent
_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) errors?\b")
_HAZARDS = re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
_CHATTER = re.compile(r"^========= *(COMPUTE-SANITIZER|(ERROR|RACECHECK) SUMMARY: 0 .*)?$")


def located() -> tuple[str, str]:
    """compute-sanitizer's path and version. Raises SystemExit if it is not installed."""
    path = shutil.which("compute-sanitizer") or shutil.which(ELSEWHERE)
    if path is None:
        raise SystemExit("compute-sanitizer is not installed (CUDA's toolkit has it): nothing was checked")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"Version (\S+)", said)
    return path, version[1] if version else "unknown"


def command(sanitizer: str, tool: str, pairs: Path) -> list[str]:
    """The sanitizer's command line. memcheck does not report API errors: our calls check them, and bindings
    ask the driver for functions that it does not have. A kernel that faults is ended, and later kernels still
    run."""
    options = ["--error-exitcode", str(FOUND), "--print-limit", "20", "--destroy-on-device-error", "kernel"]
    if tool == "memcheck":
        options += ["--report-api-errors", "no", "--padding", str(PADDING)]
    child = [sys.executable, "-m", "benchmarks.sanitizer", "launch", "--pairs", str(pairs)]
    return [sanitizer, "--tool", tool, *options, *child]


def heard(arguments: Sequence[str], timeout: float) -> tuple[int | None, str]:
    """Runs a process; returns its exit status, None if it was killed after `timeout` seconds, and its
    output."""
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=_ROOT,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the sanitizer and what it runs
        return None, process.communicate()[0]
    return process.returncode, output


def judged(tool: str, pairs: int, status: int | None, output: str) -> dict[str, Any]:
    """The result of a tool's run over `pairs` pairs. `verdict` is "clean" only if the tool's summary counts
    no error and no warning, every pair was launched or refused (at least one was launched), and the exit
    status is 0. `errors` and `warnings` are None without a summary."""
    counts = [int(count) for count in _ERRORS.findall(output)]
    hazards = [(int(errors), int(warnings)) for errors, warnings in _HAZARDS.findall(output)]
    said = [(max(counts), 0)] if counts else []  # a second line counts the unprinted ones
    said = [*said, *hazards] if hazards or tool != "racecheck" else []
    lines = output.splitlines()
    count = {word: sum(line.startswith(f"{word} ") for line in lines) for word in ("launched", "refused")}
    found = tuple(map(sum, zip(*said, strict=True))) if said else (None, None)
    if status is None:
        verdict = "timed out"
    elif not said:
        verdict = f"no summary, exit status {status}"
    elif any(found):
        verdict = "{} errors, {} warnings".format(*found)
    elif status != 0:
        verdict = f"exit status {status}"
    elif not count["launched"] or sum(count.values()) != pairs:
        verdict = f"{count['launched']} of {pairs} launched"
    else:
        verdict = "clean"
    return {
        "verdict": verdict, "errors": found[0], "warnings": found[1], "status": status, **count,
        "report": report(lines, verdict == "clean"),
    }  # fmt: skip


def report(lines: Sequence[str], clean: bool) -> list[str]:
    """The first lines of the sanitizer's report, each pair's name before its findings, and the last lines of
    a run that was not clean."""
    told, pair = [], ""
    for line in lines:
        if line.startswith(("pair ", "refused ")):
            pair = line
        elif line.startswith("=========") and not _CHATTER.match(line):
            told += [line] if not pair else [pair, line]
            pair = ""
    return told[:REPORT_LINES] + ([] if clean else ["...", *lines[-5:]])


def checked(options: argparse.Namespace, environment: Environment, sanitizer: str) -> list[dict[str, Any]]:
    """One row per family: its pairs, and the result of every tool."""
    families, rows = backend("cuda").families(), {}
    with tempfile.TemporaryDirectory(prefix="gemmtune-sanitizer-") as folder:
        for name in options.families:
            why = families[name].unavailable(environment)
            wanted = [] if why else sampled(name, environment, options.sample, options.seed)
            pairs = list(compiled(wanted, families[name], environment, kernel_cache()))
            ready = [pair for pair in pairs if pair.binary is not None]
            (Path(folder) / name).write_text(to_json(ready, environment))
            rows[name] = {
                "family": name,
                "compiled": len(ready),
                "missing": why,
                "pairs": [one.told() for one in pairs],
            }
            first = next((pair.error for pair in pairs if pair.error), "")
            say(f"{name}: {len(ready)} of {len(pairs)} pairs compiled {why or first}")

        def one(run: tuple[str, str]) -> dict[str, Any]:
            (name, tool), begin = run, time.monotonic()
            if not rows[name]["compiled"]:
                return {"verdict": "nothing to launch", "errors": None, "warnings": None, "launched": 0}
            status, output = heard(command(sanitizer, tool, Path(folder) / name), options.timeout)
            said = judged(tool, rows[name]["compiled"], status, output)
            more = ", with a report" if said["report"] else ""
            say(f"{name} {tool}: {said['verdict']}, {said['launched']} launched{more}")
            return {**said, "seconds": time.monotonic() - begin}

        runs = list(product(options.families, options.tools))
        with ThreadPoolExecutor(options.jobs) as pool:
            for (name, tool), said in zip(runs, pool.map(one, runs), strict=True):
                rows[name].setdefault("tools", {})[tool] = said
    return list(rows.values())


def unclean(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """FAMILY TOOL: VERDICT of every run that was not clean."""
    return [
        f"{row['family']} {tool}: {said['verdict']}"
        for row in rows for tool, said in row["tools"].items() if said["verdict"] != "clean"
    ]  # fmt: skip


def _known(known: Sequence[str], text: str) -> list[str]:
    """Comma-separated names, each once. Raises ArgumentTypeError for an unknown name."""
    found = list(dict.fromkeys(text.split(",")))
    for name in found:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is unknown; known: {', '.join(known)}")
    return found


def _at_least(least: int, text: str) -> int:
    if int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is less than {least}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("what", choices=("check", "launch"), nargs="?", default="check")
    made.add_argument("--pairs", type=Path, metavar="FILE", help="what `launch` launches")
    made.add_argument(
        "--families",
        type=partial(_known, FAMILIES),
        default=list(FAMILIES),
        help="these, comma-separated (all)",
    )
    made.add_argument(
        "--tools",
        type=partial(_known, TOOLS),
        default=list(TOOLS),
        help=f"these, comma-separated ({','.join(TOOLS)})",
    )
    made.add_argument(
        "--sample",
        type=partial(_at_least, 0),
        default=6,
        help="drawn of a family's space, beside its likeliest (6)",
    )
    made.add_argument("--seed", type=int, default=0, help="of the draws (0)")
    made.add_argument("--jobs", type=partial(_at_least, 1), default=1, help="processes at once (1)")
    made.add_argument("--timeout", type=float, default=120.0, help="of a process, in seconds (120)")
    made.add_argument(
        "--output", type=Path, default=RESULTS, help="folder of the result (benchmarks/results)"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Checks the families, or launches the pairs of --pairs when run under the sanitizer. Exits with 1 if any
    run was not clean."""
    made = parser()
    options = made.parse_args(arguments)
    if (options.what == "launch") != (options.pairs is not None):
        made.error("launch takes --pairs, and nothing else does")
    if options.what == "launch":
        launch_file(options.pairs)
        return
    sanitizer, version = located()
    environment = machine("cuda", 1)[0].environment
    rows = checked(options, environment, sanitizer)
    wrong = unclean(rows)
    write(
        "cuda-sanitizer", environment,
        {"what": "errors and warnings of compute-sanitizer over launches of our own kernels", "version": version,
         "tools": options.tools, "sample": options.sample, "seed": options.seed, "unclean": wrong, "rows": rows},
        options.output,
    )  # fmt: skip
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
