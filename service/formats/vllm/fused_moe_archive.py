"""Measured rows of grouped products into the entries of fused-MoE configurations, one for the two products of
a layer (fused_moe_writer.py says by which rules)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from backends.environment import Environment
from backends.grouping import SCALED_TYPES, TYPES
from backends.kernels.triton.moe_untuned import (
    BLOCK_SCALES,
    HALVES,
    kind_of,
    promotion_spills,
    untuned,
)
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from service.formats.core.export import (
    IMPORTED,
    ExportOptions,
    ExportReport,
    ExportRow,
)
from service.formats.core.override import Keyed, OmittedError
from service.formats.core.row_text import Texts
from service.formats.core.tar_text import closing, member
from service.formats.vllm.device_fp8 import fp8_on
from service.formats.vllm.experts import BLOCK, KeyedCall
from service.formats.vllm.fused_moe import FAMILY
from service.formats.vllm.fused_moe_times import Pair, best
from service.formats.vllm.parameters import (
    HIP_PARAMETERS,
    PARAMETERS,
    entry_text,
    file_text,
    kernel_fault,
)
from tuners.intervals import Interval

#: A file's entries reach from at most so many tokens, which decoding has, to at least so many (prefill).
FEW_TOKENS, MANY_TOKENS = 16, 1024
#: Numbers of tokens to tune, as messages propose them.
PROPOSED = "1,8,16,64,256,1024,4096"


class Framework(Protocol):
    """Who reads the archive."""

    @property
    def stack(self) -> str:
        """Its name, one of moe_untuned.FRAMEWORKS."""

    def path(self, experts: int, size: int, kind: str, product: str, triton: str) -> str:
        """The path in the archive of a layer's file. `kind`: how it is stored, one of moe_untuned.KINDS."""


@dataclass(frozen=True)
class _Choice:
    """The configuration of both products. `seconds` are of both together, None for an imported claim;
    `speedup` is over what the framework runs untuned, of a WIN alone; `rounds` and `rests_on` say what shows
    it."""

    solution: Solution
    judgement: str
    seconds: float | None
    speedup: Interval | None
    proven: bool
    rounds: int = 0
    rests_on: str = ""


@dataclass
class _Layer:
    """The entries of a file being gathered: the text of each number of tokens, and all rows' problems."""

    keyed: Keyed
    tokens: set[int] = field(default_factory=set)
    problems: list[GemmProblem] = field(default_factory=list)


@dataclass
class Archive:
    """One archive being written: rows by what pairs them, then entries by layer [experts, size, kind]."""

    stack: Framework
    options: ExportOptions
    product: str
    triton: str
    _rows: dict[tuple[object, ...], ExportRow] = field(default_factory=dict)
    _layers: dict[tuple[int, int, str], _Layer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._places: Texts[Environment] = Texts(lambda environment: str(environment.device_class))

    def write(self, rows: Iterable[ExportRow], report: ExportReport) -> Iterator[str]:
        """The archive's text, a file of a layer at a time; the report gets what is left out, and why."""
        for row in rows:
            try:
                self._check(row)
            except OmittedError as reason:
                report.omit(str(reason), row.problem)
            else:
                self._rows[_place(row.problem)] = row
        self._pair(report)
        written = 0
        for (experts, size, kind), layer in sorted(self._layers.items()):
            if (lacking := _uncovered(layer.tokens)) is not None:
                for problem in layer.problems:
                    report.omit(lacking, problem)
                continue
            entries = sorted(layer.keyed.texts(), key=lambda text: int(text.split('"', 2)[1]))
            path = self.stack.path(experts, size, kind, self.product, self.triton)
            piece = member(path, file_text(entries))
            written += len(piece)
            yield piece
        yield closing(written)

    def _check(self, row: ExportRow) -> None:
        """Raises OmittedError for a row that no file of the device has."""
        place = self._places.of(row.environment)
        if place != str(self.options.device):
            raise OmittedError(f"measured on {place}: the file is for {self.options.device}")
        p = row.problem
        if not p.groups:
            raise OmittedError("its problem is no grouped product, which each of a layer's two is")
        here = fp8_on(self.options.device.arch)
        if p.dtype_a in SCALED_TYPES and p.dtype_a != here:
            raise OmittedError(f"its 8-bit float is not the {here} that {self.stack.stack} uses there")
        plain = _plain(p)
        if plain is None or p != plain:
            raise OmittedError(
                "its problem is none of the kernel's: packed rows of experts with a named routing, to the "
                "type of the operands, or of 8-bit floats to bf16 or fp16"
            )

    # ---- pairs -----------------------------------------------------------------------------------

    def _pair(self, report: ExportReport) -> None:
        """Adds the entries of every layer whose two products are there. A row may be a product of two."""
        used: set[str] = set()
        for up in self._rows.values():
            p = up.problem
            down = None if p.m % 2 else self._rows.get((*_rows_of(p), p.k, p.m // 2))
            if down is None:
                continue
            used |= {p.id, down.problem.id}
            reasons = []
            try:
                found, every = self._choose(up, down), self._tokens(up, down)
            except OmittedError as reason:
                reasons, every = [str(reason)], []
            for tokens in every:
                try:
                    choice = self._entry(found, tokens, p.groups, up)
                except OmittedError as reason:
                    reasons.append(str(reason))
                else:
                    self._put(up, down, tokens, choice, report)
            for text in reasons:
                for row in (up, down):
                    report.omit(text, row.problem)
        for row in self._rows.values():
            if row.problem.id not in used:
                report.omit(
                    "the other product of its layer was not tuned for as many rows: a configuration is of "
                    "both",
                    row.problem,
                )

    def _tokens(self, up: ExportRow, down: ExportRow) -> list[int]:
        """The numbers of tokens that the rows are for, by the keys of both, or by top_k. Raises
        OmittedError."""
        p, top_k = up.problem, self.options.top_k
        calls = [call for key in (*up.keys, *down.keys) if (call := KeyedCall.of(key)) is not None]
        named = {c for c in calls if (c.experts, c.size) == (p.groups, p.m // 2)}
        found = {call for call in named if top_k in (None, call.top_k)}
        if len({call.top_k for call in found}) > 1:
            raise OmittedError("models with different experts of a token share its rows: give top_k")
        if found:
            return sorted({call.tokens for call in found})
        if top_k is None:
            raise OmittedError("its tokens are not known: give top_k, the experts of a token")
        if p.n % top_k:
            raise OmittedError(f"its rows are no multiple of {top_k}, the experts of a token")
        return [p.n // top_k]

    def _put(
        self, up: ExportRow, down: ExportRow, tokens: int, choice: _Choice, report: ExportReport
    ) -> None:
        key = up.problem.groups, up.problem.m // 2, kind_of(up.problem)
        layer = self._layers.get(key)
        if layer is None:
            what = f"{self.stack.stack} tells entries apart by E, N, tokens and the device only"
            layer = self._layers[key] = _Layer(Keyed(report, what))
        speedup = None
        if choice.speedup is not None:
            ends = choice.speedup.to_dict()
            speedup = ends["low"] or None, choice.speedup.mid, ends["high"]
        default_seconds = choice.seconds
        if choice.seconds is not None and speedup is not None:
            default_seconds = choice.seconds * speedup[1]
        row = replace(
            up, solution=choice.solution, judgement=choice.judgement, proven=choice.proven, speedup=speedup,
            baseline_seconds=default_seconds, count=max(up.count, down.count), rounds=choice.rounds,
            rests_on=choice.rests_on,
        )  # fmt: skip
        layer.keyed.put(str(tokens), row, entry_text(tokens, choice.solution.parameters))
        layer.tokens.add(tokens)
        layer.problems.append(up.problem)

    # ---- configurations --------------------------------------------------------------------------

    def _choose(self, up: ExportRow, down: ExportRow) -> Sequence[Pair]:
        """The configurations of both products. Raises OmittedError where there is none."""
        if IMPORTED in (up.provenance, down.provenance):
            if up.provenance != down.provenance or up.solution.id != down.solution.id:
                raise OmittedError("what imported files say of its layer's two products differs")
            self._check_parameters(up.solution, kind_of(up.problem))
            return []
        mine, theirs = ({one.solution.id: one for one in row.candidates} for row in (up, down))
        if not mine or not theirs:
            raise OmittedError(
                f"no candidate of {FAMILY} was verified and timed for it: tune it again (tune --force)"
            )
        kind = kind_of(up.problem)
        both = (name for name, one in mine.items() if name in theirs and self._nameable(one.solution, kind))
        found = [Pair(mine[name], theirs[name]) for name in both]
        if not found:
            raise OmittedError(
                "its layer's two products measured no configuration in common: tune both again with a larger "
                "budget (tune --force)"
            )
        return found

    def _entry(self, found: Sequence[Pair], tokens: int, experts: int, up: ExportRow) -> _Choice:
        """What to write for a number of tokens. Raises OmittedError."""
        if not found:
            return _Choice(up.solution, "", None, None, proven=True)
        kind, device = kind_of(up.problem), self.options.device
        rows = untuned(self.stack.stack, tokens, experts, device.vendor, kind)
        if any(promotion_spills(row, device.arch, kind) for row in rows):
            raise OmittedError(
                f"what {self.stack.stack} runs untuned for its tokens spills registers in the kernel that "
                "was timed, which promotes sums, and does not there: a gain over it is not known"
            )
        earlier, *newer = (tuple(sorted(zip(PARAMETERS, row, strict=True))) for row in rows)
        by_parameters = {tuple(sorted(of.solution.parameters.items())): of for of in found}
        if earlier not in by_parameters:
            raise OmittedError(
                f"what {self.stack.stack} runs untuned for its tokens was not measured for both products of "
                "its layer: tune both again (tune --force)"
            )
        defaults = [by_parameters[of] for of in dict.fromkeys((earlier, *newer)) if of in by_parameters]
        chosen = best(found, defaults)
        if chosen.found is not None:
            pair, shown = chosen.found
            return _Choice(
                pair.solution,
                "WIN",
                shown.seconds,
                shown.ratio.inverse,
                pair.proven,
                shown.rounds,
                shown.rests_on,
            )
        if self.options.ties == "omit":
            raise OmittedError(
                "TIE: left out, so its tokens take the nearest entry of their file if there is one "
                "(ties=default writes the framework's own configuration out)"
            )
        return _Choice(chosen.default.solution, "TIE", chosen.default.seconds, None, proven=True)

    def _nameable(self, solution: Solution, kind: str) -> bool:
        try:
            self._check_parameters(solution, kind)
        except OmittedError:
            return False
        return True

    def _check_parameters(self, solution: Solution, kind: str) -> None:
        """Raises OmittedError for a solution that is no configuration of the kernel on the device."""
        if solution.family != FAMILY:
            raise OmittedError(
                f"solutions of family {solution.family} have no name in {self.stack.stack}'s files; known: "
                f"{FAMILY}"
            )
        if (fault := kernel_fault(solution.parameters, "the fused mixture of experts")) is not None:
            raise OmittedError(f"the kernel does not take its parameters: {fault}")
        step = int(solution.parameters["BLOCK_SIZE_K"] or 0)
        if kind == BLOCK_SCALES and BLOCK % step:
            raise OmittedError(
                f"BLOCK_SIZE_K is {step}; a step of the kernel has one scale, so it divides {BLOCK}"
            )
        if self.options.device.vendor != "hip" and not solution.parameters.keys() <= set(PARAMETERS):
            raise OmittedError(f"{' and '.join(HIP_PARAMETERS)} are parameters for AMD devices only")


def _plain(p: GemmProblem) -> GemmProblem | None:
    """The problem of its sizes as the frameworks call it; None where its routing is no named one, its weights
    are quantised alone, or its output is none of a model's."""
    if p.weight_only or p.dtype_d not in TYPES or p.routing.partition(",")[0].isdigit():
        return None
    scaled = {} if kind_of(p) == HALVES else {"scale_a": p.scale_b, "scale_b": p.scale_a}
    out = p.dtype_d if scaled else None
    return from_linear(p.n, p.m, p.k, p.dtype_a, groups=p.groups, routing=p.routing, dtype_d=out, **scaled)


def _rows_of(p: GemmProblem) -> tuple[object, ...]:
    """What both products of a layer have in common."""
    return p.groups, p.n, p.dtype_a, p.dtype_d, p.scale_a, p.routing


def _place(p: GemmProblem) -> tuple[object, ...]:
    return (*_rows_of(p), p.m, p.k)


def _uncovered(tokens: set[int]) -> str | None:
    """Why a file with entries for these numbers of tokens alone would make other calls slow, or None."""
    if max(tokens) < MANY_TOKENS:
        return (
            f"its layer has no entry from {MANY_TOKENS} tokens, and prefill would take one for fewer: tune "
            f"{PROPOSED} tokens (--tokens), and write with ties=default"
        )
    if min(tokens) > FEW_TOKENS:
        return (
            f"its layer has no entry up to {FEW_TOKENS} tokens, and decoding would take one for more: tune "
            f"{PROPOSED} tokens (--tokens), and write with ties=default"
        )
    return None
