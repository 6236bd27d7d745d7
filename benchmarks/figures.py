"""A GPU's figures by one command: checks and benchmarks one after another, within some minutes.

    python -m benchmarks.figures FOLDER [--minutes M] [--only NAME ...] [--list]

Every step is a process of its own. It writes FOLDER/NAME.json or what it prints, FOLDER/NAME.log, and leaves
FOLDER/NAME.done if it succeeded. A step that is done is not run again, so that a machine that is lent for a short time
continues where the last one ended; delete FOLDER/NAME.done to measure anew. A step whose minutes do not fit in what is
left is not begun, and the next that fits is. The exit code is 1 if a step failed or was stopped, and 0 otherwise.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

#: What stands for the result's path, and for the folder, in a step's arguments.
OUT, FOLDER = "OUT", "FOLDER"


@dataclass(frozen=True)
class Step:
    """Modules with their arguments, one after another. `minutes` is what they take, at most; a step is stopped
    after twice that."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    minutes: float


def _step(name: str, minutes: float, *lines: str) -> Step:
    return Step(name, tuple(tuple(line.split()) for line in lines), minutes)


def _served(name: str, minutes: float, models: str, batches: str) -> Step:
    """Models of transformers: their products are recorded and tuned, and a bundle of them is used."""
    model = f"benchmarks.client_torch_model --model {models} --batch {batches} --no-fp32"
    return _step(
        name, minutes,
        f"{model} --record FOLDER/{name}.jsonl",
        f"service.entry tune FOLDER/{name}.jsonl --device cuda",
        f"service.entry bundle -o FOLDER/{name}.gtb --problems FOLDER/{name}.jsonl --device cuda",
        f"{model} FOLDER/{name}.gtb --output OUT",
    )  # fmt: skip


_LOW_BIT = "dequant-tma-wgmma,dequant-tile-wgmma,dequant-tile-mma,bytes-tile-mma,mxfp4-tile-mma,triton-dequant,tile-wgmma,grouped-ring,grouped-wgmma,grouped-dequant-wgmma,dequant-gemv,dequant-mma,dequant-ring,packed-mma,packed-imma,dequant-wgmma"
#: In the order of their worth on a device that has no figures yet: what is right comes before what is fast.
STEPS = (
    _step("tests", 4, "pytest -q -m cuda tests/backends/gpu tests/backends/cuda tests/client/torch"),
    _step("sanitizer", 3, f"benchmarks.sanitizer --families {_LOW_BIT} --sample 2 --jobs 12 --output OUT"),
    _step(
        "grouped-fp8", 4,
        "benchmarks.grouped --models qwen3-30b-a3b deepseek-v3 --kinds bf16 fp8_blocks --tokens 1 8 64 "
        "--routings uniform --seconds 3 --minutes 4 --json OUT",
    ),
    _step(
        "grouped-weights", 4,
        "benchmarks.grouped --models gpt-oss-20b --kinds bf16 w4a16 mxfp4 --tokens 1 8 64 512 "
        "--routings uniform --seconds 2 --minutes 4 --json OUT",
    ),
    _step(
        "lowbit", 3, "benchmarks.lowbit --kinds w4a16 w4a16_mxfp4 --tokens 1 8 32 64 128 --quick --precompile --json OUT"
    ),
    _step(
        "moe-layer", 4,
        "benchmarks.moe_layer --models qwen3-30b-a3b mixtral-8x7b --tokens 4096 512 64 8 1 --routings uniform skewed "
        "--seconds 1.2 --minutes 3.4 --json OUT",
    ),
    _step(
        "moe-layer-weights", 5, "benchmarks.moe_layer --quick --kinds mxfp4 w4a16 --tokens 1 8 64 512 --minutes 5 --json OUT"
    ),
    _served("moe-models", 6, "mixtral-4-layers qwen3-30b-a3b-8-layers", "1 8 64"),
    _step("grouped", 2, "benchmarks.grouped --quick --precompile --json OUT"),
    _step(
        "grouped-swiglu", 4,
        "benchmarks.grouped --models qwen3-30b-a3b mixtral-8x7b --kinds bf16 bf16_swiglu --routings uniform "
        "--seconds 1.2 --minutes 3.6 --json OUT",
    ),
    _step("grouped-fp8-rows", 2, "benchmarks.grouped --quick --kinds bf16 fp8_rows --json OUT"),
    _step(
        "lowbit-llama-3-70b", 9,
        "benchmarks.lowbit --models llama-3-70b --tp 1 8 --kinds w4a16 w8a16 --seconds 1.5 --minutes 8 --json OUT",
    ),
    _step("lowbit-bytes", 4, "benchmarks.lowbit --kinds w8a8_int8_rows w8a8_fp8_rows --quick --precompile --json OUT"),
    _step("lowbit-blocks", 3, "benchmarks.lowbit --kinds w8a8_fp8_blocks --tokens 8 32 64 128 4096 --quick --precompile --json OUT"),
    _step(
        "lowbit-tp8", 9,
        "benchmarks.lowbit --precompile --models llama-3-70b qwen3-8b qwen3-14b deepseek-v3 --tp 8 --seconds 1 --minutes 8.8 "
        "--kinds w8a8_int8_rows w8a8_fp8_rows w8a8_fp8_blocks --tokens 8 1 32 64 --json OUT",
    ),
    _step(
        "service", 9,
        "benchmarks.service_tuning --problems 50 --efforts quick normal --rounds 4 1 --first 0 --thorough 0 --output OUT",
    ),
    _step(
        "service-regret", 6,
        "benchmarks.service_tuning --problems 10 --rounds 3 --first 7 --thorough 10 --output OUT",
    ),
    _step(
        "service-untuned", 6,
        "benchmarks.service_tuning --shapes benchmarks/untuned.json --problems 31 --efforts quick normal --rounds 3 1 "
        "--first 0 --thorough 0 --output OUT",
    ),
)  # fmt: skip


def run(
    steps: Sequence[Step],
    folder: Path,
    minutes: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Runs the steps that are not done and fit; the exit code. `say` gets a line for each."""
    folder.mkdir(parents=True, exist_ok=True)
    end, failed = clock() + 60 * minutes, 0
    for step in steps:
        done, left = folder / f"{step.name}.done", (end - clock()) / 60
        if done.exists():
            say(f"{step.name}: done before")
            continue
        if step.minutes > left:
            say(f"{step.name}: not begun, it takes {step.minutes:g} minutes and {max(left, 0):.1f} are left")
            continue
        begun = clock()
        why = _call(step, folder, min(2 * step.minutes, left) * 60)
        took = f"{clock() - begun:.0f} s"
        if why is None:
            done.touch()
            say(f"{step.name}: {took}")
        else:
            failed += 1
            say(f"{step.name}: {why} after {took}; see {folder / step.name}.log")
    return 1 if failed else 0


def _call(step: Step, folder: Path, seconds: float) -> str | None:
    """Runs a step; why it failed, None if it did not."""
    end = time.monotonic() + seconds
    with (folder / f"{step.name}.log").open("wb") as log:
        for words in step.commands:
            left = end - time.monotonic()
            try:
                code = subprocess.run(
                    command(step.name, words, folder),
                    stdout=log,
                    stderr=log,
                    timeout=max(left, 0),
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return "stopped"
            if code:
                return f"{words[0]} ended with exit code {code}"
    return None


def command(name: str, words: Sequence[str], folder: Path) -> list[str]:
    """A step's command. An option --output takes a folder, and others a file."""
    out = str(folder / (name if "--output" in words else f"{name}.json"))
    return [
        sys.executable, "-m",
        *(out if word == OUT else word.replace(FOLDER, str(folder)) for word in words),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("folder", type=Path, nargs="?", help="of results; it need not exist")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all steps together (60)")
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the steps and their commands")
    given = parser.parse_args(arguments)
    steps = [step for step in STEPS if not given.only or step.name in given.only]
    if given.list:
        for step in steps:
            for number, words in enumerate(step.commands):
                label = f"{step.name:18} {step.minutes:4g} min" if not number else " " * 27
                print(f"{label}  python -m {' '.join(words)}")
        return 0
    if given.folder is None:
        parser.error("name a folder for the results, or --list")
    return run(steps, given.folder, given.minutes, lambda line: print(line, flush=True))


if __name__ == "__main__":
    sys.exit(main())
