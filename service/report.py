"""The command line's output: tables of devices, problems and verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile

from rich.table import Table
from rich.text import Text

from backends.counted import counted
from backends.problem import GemmProblem
from backends.registry import FoundDevice
from backends.wire import problem_to_wire
from service.formats.core.base import ImportedProblem, Rejected
from service.model.gain import TokenGain
from service.text_table import plain_table
from tuners.baselines import TriedBaseline
from tuners.ceilings import Ceilings
from tuners.decide import Judgement
from tuners.packed import PackingCost
from tuners.session_store import Result

_COLORS = {Judgement.WIN: "green", Judgement.TIE: "yellow", Judgement.LOSS: "red"}
#: Way to run a model's layers -> what its table of gains is headed with.
_WAYS = {
    "fused": ", layers fused as vLLM does",
    "split": ", layers one by one",
    "merged": ", apply(fuse=True)",
}


def problem_text(problem: GemmProblem) -> str:
    """The row-major call in a few words: 16x4096x4096 bf16 NT b:uint4 block_1x128+bf16+eight bias (m x n x k;
    T: transposed; b, c, d: the types of B, C and D where they differ, then the scaling; padded: some leading
    dimension is not the least)."""
    wire = problem_to_wire(problem)
    kind = "tf32" if problem.compute == "tf32" else wire["dtype"]
    letters = problem.trans_b + problem.trans_a  # the operands of the row-major call
    words = [f"{wire['m']}x{wire['n']}x{wire['k']}", kind, letters]
    if problem.batch > 1:
        words.insert(1, f"batch {problem.batch}")
    if problem.groups:
        routing = wire["routing"]
        words.append(
            f"{counted(problem.groups, 'group')} {routing if isinstance(routing, str) else 'of given rows'}"
        )
    words += [f"{name[-1]}:{wire[name]}" for name in ("dtype_b", "dtype_c", "dtype_d") if name in wire]
    if "scaling" in wire:
        words.append("+".join(value for value in wire["scaling"].values() if value != "none"))
    if problem.epilogue != "none":
        words.append(problem.epilogue.replace("_", "+"))
    if problem.beta != "zero":
        words.append("+C")
    if problem.prepacked:
        words.append("prepacked")
    if not {"lda", "ldb", "ldc", "ldd"}.isdisjoint(wire):
        words.append("padded")
    return " ".join(words)


def time_text(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def winner_text(solution_id: str) -> str:
    """A solution's family and threads; its whole id is in the JSON."""
    *parts, _ = solution_id.split("-")  # the last is a hash
    named = takewhile(lambda part: "_" not in part, parts[1:])  # parameters are NAME_VALUE; openblas_upcast
    family = "-".join((*parts[:1], *named))
    threads = next((p.removeprefix("threads_") for p in parts if p.startswith("threads_")), "")
    return f"{family}, {threads} threads" if threads else family


def packing_text(packing: PackingCost) -> str:
    """What a solution's packed copy of the weights costs: rows_16, 8.1 MiB, packed once in 85 us."""
    return f"{packing.layout}, {packing.bytes / 2**20:.3g} MiB, packed once in {time_text(packing.us * 1e-6)}"


def devices_table(found: Sequence[FoundDevice], ceilings: Mapping[int, Ceilings | None]) -> Table:
    """One row per device; index and UUID distinguish devices of the same class."""
    table = plain_table("index", "device class, UUID", "what it has", title="Devices")
    table.columns[1].no_wrap = True
    for row, device in enumerate(found):
        env = device.environment
        facts = {
            "memory": f"{env.memory_bytes / 2**30:.1f} GiB", "driver": env.driver, "runtime": env.runtime,
            "ISA or partition": env.partition, **dict(sorted(env.libraries.items())),
            "ceilings": ceilings_text(ceilings.get(row)),
        }  # fmt: skip
        lines = [f"{name}: {value}" for name, value in facts.items() if value]
        table.add_row(str(device.index), f"{env.device_class}\n{env.uuid}", "\n".join(lines))
        table.add_section()
    return table


def ceilings_text(ceilings: Ceilings | None) -> str:
    """The ceilings, one per line: reading, copying, and multiplying in every measured type."""
    if ceilings is None:
        return "not measured yet (devices --measure)"
    lines = [
        f"read {ceilings.read_bytes_per_second / 1e9:.1f} GB/s",
        f"copy {ceilings.copy_bytes_per_second / 1e9:.1f} GB/s (read + written)",
    ]
    lines += [f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in ceilings.flops_per_second.items()]
    return "\n".join(lines)


def problems_table(problems: Sequence[ImportedProblem]) -> Table:
    """One row per distinct problem."""
    table = plain_table(
        "problem (row-major m x n x k)", "calls", "GFLOP", "MiB", "id", title="Problems",
        right=("calls", "GFLOP", "MiB"),
    )  # fmt: skip
    for item in problems:
        p = item.problem
        size = (p.bytes_read + p.bytes_written) / 2**20
        table.add_row(problem_text(p), str(item.count), f"{p.flops / 1e9:.3g}", f"{size:.3g}", p.id)
    return table


def rejected_table(rejected: Sequence[Rejected], most: int = 20) -> Table:
    """The first `most` rejected lines, each with its reason."""
    table = plain_table(
        "line", "reason", "text", title=f"{len(rejected)} line{'s' * (len(rejected) != 1)} rejected"
    )
    for item in rejected[:most]:
        table.add_row(str(item.line), item.reason, Text(item.text[:60], overflow="ellipsis"))
    if len(rejected) > most:
        table.add_row("...", f"{len(rejected) - most} more (--json lists all)", "")
    return table


def verdicts_table(results: Sequence[Result], counts: Mapping[str, int]) -> Table:
    """One row per problem, with its winner: times are medians of the final, the interval is the speed-up's,
    and the share of the roofline is the winner's, with the ceiling that binds."""
    table = plain_table(
        "problem (row-major m x n x k), winner", "calls", "baseline", "best", "speed-up", "verdict",
        "of roofline", title="Verdicts", right=("calls", "baseline", "best", "speed-up"),
    )  # fmt: skip
    for result in results:
        p, verdict = result.problem, result.verdict
        calls = str(counts.get(p.id, 1))
        if verdict is None:
            table.add_row(f"{problem_text(p)}\n{result.error}", calls, "", "", "", Text("none", "red"), "")
            continue
        gain = verdict.speedup
        interval = f"\n{gain.low:.2f}-{gain.high:.2f}" if verdict.judgement is Judgement.WIN else ""
        share = "" if result.roofline_share is None else f"{result.roofline_share:.0%} {result.binds}"
        winner = winner_text(verdict.winner)
        if verdict.packing is not None:
            winner += f"\npacked weights: {packing_text(verdict.packing)}"
        table.add_row(
            f"{problem_text(p)}\n{winner}", calls,
            time_text(verdict.baseline_seconds), time_text(verdict.seconds), f"{gain.mid:.2f}x{interval}",
            Text(verdict.judgement.value, _COLORS[verdict.judgement]), share,
        )  # fmt: skip
    return table


def summary(results: Sequence[Result], counts: Mapping[str, int]) -> str:
    """Counts of verdicts, the speed-up over all calls if each winner replaces its baseline, the baselines'
    names, why the searches ended, and what became of every default."""
    verdicts = [(r.verdict, counts.get(r.problem.id, 1)) for r in results if r.verdict is not None]
    judged = Counter(verdict.judgement.value for verdict, _ in verdicts)
    words = ", ".join(f"{judged[j.value]} {j.value}" for j in Judgement)
    missing = len(results) - len(verdicts)
    text = f"{words}{f', {missing} without a verdict' if missing else ''}"
    before = sum(verdict.baseline_seconds * calls for verdict, calls in verdicts)
    after = sum(verdict.seconds * calls for verdict, calls in verdicts)
    if after:
        names = Counter(verdict.baseline_name for verdict, _ in verdicts)
        whose = ", ".join(f"{name} ({count})" for name, count in names.items())
        text += f"; all calls together {before / after:.2f}x faster than the baselines: {whose}"
    chosen = sum(verdict.tied > 1 for verdict, _ in verdicts)
    text += f"; {chosen} chosen among candidates that tie" if chosen else ""
    ended = Counter(found for r in results if (found := r.counts.get("search_ended")))
    if ended:
        text += f"\nsearches: {', '.join(f'{count} {reason}' for reason, count in ended.items())}"
    fates = Counter(_fate(one) for verdict, _ in verdicts for one in verdict.baselines)
    if fates:
        text += f"\ndefaults: {', '.join(f'{said} ({count})' for said, count in fates.items())}"
    return text


def _fate(one: TriedBaseline) -> str:
    reason = f", {one.reason}" if one.reason else ""
    return f"{one.name}: {one.fate}{reason}"


def gain_table(way: str | None, gains: Sequence[TokenGain]) -> Table:
    """One row per number of tokens; `way` names how the layers run, where there are several ways."""
    table = Table(title=f"GEMMs of one forward pass on one device{_WAYS[way] if way else ''}")
    for name in ("tokens", "as it is", "with this", "gain", "best known", "left", "unknown"):
        table.add_column(name, justify="right")
    for one in gains:
        times = [time_text(s) if s else "" for s in (one.baseline_seconds, one.seconds)]
        ratios = ["" if r is None else f"{r:.3f}x" for r in (one.gain, one.best_gain, one.left)]
        unknown = f"{one.unknown} of {one.problems}" if one.unknown else ""
        table.add_row(str(one.tokens), *times, *ratios, unknown)
    return table
