"""The bare node: `python -m tuners` tunes problems and writes JSON lines, with no service installed.

    echo '{"m":16,"n":4096,"k":4096,"dtype":"fp32"}' | python -m tuners --output results.jsonl

Problems are read as JSON lines (in the form of the HTTP interface) from a file or standard input. Running the
same command again resumes where the output file ends. Exit codes: 0 every problem has a verdict, 1 some have
none or the device was lost, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from backends.cache import BinaryCache, default_cache_dir
from backends.errors import DeviceLost, GemmtuneError, InvalidProblem
from backends.problem import GemmProblem
from backends.registry import find_device
from backends.wire import problem_from_wire
from tuners.budget import Search
from tuners.campaign import Campaign, Finished
from tuners.ceilings import CeilingStore
from tuners.device_client import DeviceClient
from tuners.effort import DEFAULT_SECONDS, EFFORTS, effort_help, effort_of
from tuners.journal import Journal
from tuners.policy import CACHES, MODES, MeasurementPolicy, read_bytes
from tuners.strategies import STRATEGIES
from tuners.tuning_settings import TuningSettings

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        problems, bad = _problems(options.problems)
        for line, reason in bad:
            print(f"line {line}: {reason}", file=sys.stderr)
        if not problems:
            print("no problem to tune", file=sys.stderr)
            return BAD_INPUT
        return max(_tune(options, problems), FAILED if bad else OK)
    except DeviceLost as error:
        print(f"error: {error}; what was measured is kept: run the same command again", file=sys.stderr)
        return FAILED
    except GemmtuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tuners", description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="?", default="-", help="file of JSON lines; - is standard input")
    parser.add_argument("--output", required=True, type=Path, help="JSON lines file; existing sessions go on")
    parser.add_argument("--device", default="cpu", help="device selector or UUID (default: cpu)")
    parser.add_argument("--index", type=int, default=None, help="of several such devices the one with this")
    parser.add_argument("--effort", choices=list(EFFORTS), help=f"how much to spend: {effort_help()}")
    parser.add_argument("--seconds", type=float, default=None, help="measuring budget a problem")
    parser.add_argument("--stop-at-roofline", type=float, default=None, metavar="SHARE",
                        help="end the search at this share of the roofline, e.g. 0.95")  # fmt: skip
    parser.add_argument("--stop-at-regret", type=float, default=None, metavar="SHARE",
                        help="end the search once twice as many candidates gain no more")  # fmt: skip
    parser.add_argument("--candidates", type=int, default=None, help="candidates of a problem at most")
    parser.add_argument("--strategy", choices=sorted(STRATEGIES), default=Search.strategy)
    parser.add_argument("--strategy-option", action="append", default=[], metavar="NAME=VALUE",
                        help="an option of the strategy (repeat; docs/strategies.md)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=MODES, help="default: the device's (graph on GPUs)")
    parser.add_argument("--cache", choices=CACHES, default="cold")
    parser.add_argument("--max-workspace", help="workspace limit: bytes, or 32MiB")
    parser.add_argument("--margin", type=float, default=0.02, help="least relative gain of a WIN")
    parser.add_argument("--cache-dir", type=Path, default=None, help="compiled kernels and ceilings")
    return parser


def _problems(source: str) -> tuple[list[GemmProblem], list[tuple[int, str]]]:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidProblem(f"cannot read {source}: {error}") from error
    problems, bad = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                problems.append(problem_from_wire(json.loads(line)))
            except (ValueError, RecursionError) as error:
                bad.append((number, str(error)))
    return list(dict.fromkeys(problems)), bad


def _tune(options: argparse.Namespace, problems: list[GemmProblem]) -> int:
    effort = effort_of(options.effort)
    budget = effort.budget(
        DEFAULT_SECONDS,
        options.seconds,
        options.candidates,
        options.stop_at_roofline,
        options.stop_at_regret,
    )
    rule = effort.rule(options.margin)
    root = options.cache_dir or default_cache_dir()
    store = CeilingStore(root / "ceilings")
    limit = None if options.max_workspace is None else read_bytes(options.max_workspace, "--max-workspace")
    given = STRATEGIES[options.strategy].options.parse(options.strategy_option)
    search = Search(options.strategy, options.seed, options=given)
    device = find_device(options.device, options.index)
    policy = MeasurementPolicy.of(
        device.environment.vendor, options.mode, cache=options.cache, max_workspace_bytes=limit
    )
    journal = Journal(options.output)
    with DeviceClient(device, BinaryCache(root / "kernels")) as runner:
        campaign = Campaign(
            runner,
            problems,
            TuningSettings(policy, budget, search, rule),
            journal,
            store.of(runner.environment, runner.ceilings),
        )
        previous = signal.signal(signal.SIGINT, lambda *_: campaign.stop())
        try:
            failed = 0
            for event in campaign.run():
                if isinstance(event, Finished):
                    failed += event.result.verdict is None
                    print(_line(event), file=sys.stderr)
        finally:
            signal.signal(signal.SIGINT, previous)
            journal.close()
        return INTERRUPTED if campaign.stopped else FAILED if failed else OK


def _line(event: Finished) -> str:
    result = event.result
    if result.verdict is None:
        return f"{result.problem.slug}: no verdict: {result.error}"
    verdict = result.verdict
    said = f"{verdict.judgement} {verdict.speedup.mid:.2f}x {verdict.winner} over {verdict.baseline_name}"
    if verdict.packing is not None:
        packing = verdict.packing
        said += f"; its packed weights take {packing['bytes']} bytes, packed once in {packing['us']} us"
    return f"{result.problem.slug}: {said}; search: {result.counts.get('search_ended') or 'not known'}"


if __name__ == "__main__":
    sys.exit(main())
