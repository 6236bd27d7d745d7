"""Rows into the template lookup table of PyTorch's Inductor. EXPERIMENTAL: PyTorch declares the keys of this
table subject to change; they were the same from 2.10, the first release that has it, to 2.15.

A JSON object of lists, which is loaded before the first compilation by

    import json
    from torch._inductor import config, lookup_table, virtualized
    config.lookup_table.table = json.load(open("table.json"))
    virtualized.V.set_choices_handler(lookup_table.LookupTableChoices())

A key is the device, the operands (type, sizes, strides in elements) and the operation, as Python prints them:

    NVIDIA H200+((torch.bfloat16, [16, 4096], [4096, 1]), (torch.bfloat16, [4096, 14336], [1, 4096]))+mm

Its list holds one configuration, so that Inductor has nothing left to tune there. Two kinds are written:

    {"template_id": "triton::mm", "BLOCK_M": 64, ...}    parameters of Inductor's own Triton template
    {"template_id": "aten::mm"}                          torch's own call (ties=default)

Only plain mm is written: F.linear without a bias is mm(x, w.t()). With a bias one lowering of addmm asks for
two keys (the bias as it is, and expanded), of which it takes its choices together, and whether there is an
addmm at all depends on what follows it. A key tells neither TF32 from fp32 nor the precision of sums, so
that only 16-bit operands with fp32 sums are written. A key that never comes is harmless: Inductor then
chooses as it would without a table. The first key of the file is none: it says what the file is.

Source: LookupTableChoices (torch/_inductor/lookup_table/choices.py), MMKernelInputs (kernel_inputs.py) and
tuned_mm (kernel/mm.py) of PyTorch 2.10 to 2.15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from backends.canonical import slug
from backends.environment import Environment
from backends.export_targets import EXPORT_TARGETS
from backends.problem import GemmProblem
from backends.solution import Solution
from service.formats.core.export import ExportOptions, ExportRefused, ExportReport, ExportRow
from service.formats.core.override import (
    Keyed,
    OmittedError,
    Says,
    UnnamedError,
    Validators,
    best_named,
    units,
    with_environments,
)
from service.formats.core.row_text import dumps
from service.formats.tunableop.target import says

#: The oldest and the newest release whose keys are known.
_OLDEST, _NEWEST = (2, 10), (2, 15)
_TARGET = re.compile(
    r"torch-([0-9]{1,3})\.([0-9]{1,3})(?:\.([0-9]{1,3}))?\+(?:(rocm)[0-9.]*|cu(?:da)?[0-9.]*)"
)
_FORMS = (
    "torch-<major>.<minor>[.<patch>]+rocm, 2.10 to 2.15: keys name the device's whole GCN arch",
    "torch-<major>.<minor>[.<patch>]+cuda, 2.10 to 2.15: keys name the device's product",
)
_DTYPES: Mapping[str, str] = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
#: The family whose parameters mean the same as the template's. The time of another kernel with the same
#: parameters says nothing about it.
FAMILY = "triton-inductor-mm"
_TARGETS = (EXPORT_TARGETS["inductor"],)
#: The template's parameters, all of them required, and the optional ones that it takes on AMD devices.
PARAMETERS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_stages", "num_warps")
HIP_PARAMETERS = ("matrix_instr_nonkdim", "waves_per_eu", "kpack")
#: How the file is loaded; the file says it too.
_LOAD = (
    "import json; from torch._inductor import config, lookup_table, virtualized; "
    "config.lookup_table.table = json.load(open(file)); "
    "virtualized.V.set_choices_handler(lookup_table.LookupTableChoices())"
)
_ATEN = '{"template_id":"aten::mm"}'
_EXAMPLE_KEY = (
    "NVIDIA H200+((torch.bfloat16, [16, 4096], [4096, 1]), (torch.bfloat16, [4096, 14336], [1, 4096]))+mm"
)


@dataclass(frozen=True)
class InductorTable:
    """The registry's entry."""

    name: str = "inductor-table"
    description: str = "EXPERIMENTAL: Inductor's lookup table, torch._inductor.config.lookup_table.table"
    example: str = f'{{"{_EXAMPLE_KEY}":[{_ATEN}]}}\n'
    media_type: str = "application/json"
    suffix: str = ".json"
    targets: tuple[str, ...] = _FORMS
    key_formats: tuple[str, ...] = ()

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """One object, one key per line. Raises ExportRefused."""
        target = _Target.parse(options.target)
        rows, options = with_environments(rows, options)
        return _Table(target, options.ties == "default", _settle(target, options)).write(rows, report)


# ---- the target ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """A torch build. `patch` is None where it was not named."""

    major: int
    minor: int
    patch: int | None
    rocm: bool

    @property
    def text(self) -> str:
        patch = "" if self.patch is None else f".{self.patch}"
        return f"torch {self.major}.{self.minor}{patch} for {'ROCm' if self.rocm else 'CUDA'}"

    @classmethod
    def parse(cls, text: str | None) -> _Target:
        """Parses a target. Raises ExportRefused, which lists the forms."""
        forms = "; ".join(_FORMS)
        if text is None:
            raise ExportRefused(
                f"Inductor's table is written for one torch build: give its target, one of: {forms}"
            )
        match = _TARGET.fullmatch(text)
        if match is None:
            raise ExportRefused(f"target {text!r} is none of: {forms}")
        found = cls(int(match[1]), int(match[2]), None if match[3] is None else int(match[3]), bool(match[4]))
        if (found.major, found.minor) < _OLDEST:
            raise ExportRefused(
                f"target {text!r} has no lookup table: torch 2.10 is the first release with it"
            )
        if (found.major, found.minor) > _NEWEST:
            raise ExportRefused(
                f"target {text!r}: the table's keys are known up to torch 2.15, and PyTorch may change them"
            )
        return found

    def is_build(self, version: str) -> bool:
        """Whether a torch version is this release (and patch, if one was named)."""
        match = re.search(r"([0-9]+)\.([0-9]+)(?:\.([0-9]+))?", version)
        if match is None or (int(match[1]), int(match[2])) != (self.major, self.minor):
            return False
        return self.patch is None or match[3] is None or int(match[3]) == self.patch


def _gcn_arch(environment: Environment) -> str | None:
    return says(environment, "GCN_ARCH_NAME")


def _device_name(environment: Environment) -> str | None:
    """The product as the driver spells it; None where it was taken from a device class."""
    told = says(environment, "CUDA_DEVICE")
    return None if told is None else told.partition(":")[2]


def _settle(target: _Target, options: ExportOptions) -> Validators:
    """The device's name in the keys, and its number of compute units, which no key records. Raises
    ExportRefused."""
    key, source, example = (
        ("GCN_ARCH_NAME", _gcn_arch, "gfx942:sramecc+:xnack-")
        if target.rocm
        else ("DEVICE_NAME", _device_name, "NVIDIA H200")
    )
    here = tuple(e for e in options.environments if e.device_class == options.device)
    options = replace(options, environments=here)
    told = (source(environment) for environment in here)
    value = options.validators.get(key) or next((text for text in told if text), None)
    vendor = "hip" if target.rocm else "cuda"
    if value is None and options.device.vendor == vendor:
        raise ExportRefused(
            f"Inductor's keys begin with the device's {key}, and no environment of the rows says it: give it "
            f"as a validator (such as {key}:{example}) with the text of "
            "torch.cuda.get_device_properties(0).gcnArchName"
        )
    if not target.rocm and value is not None and slug(value) != options.device.product:
        raise ExportRefused(
            f"the target's {key} is {value}, but the rows are of {options.device}: what is fastest there was "
            "not measured"
        )
    sources: dict[str, Says] = {key: source, "CU_COUNT": units}
    return Validators.settle(f"Inductor of {target.text}", vendor, sources, options)


# ---- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """One file being written."""

    target: _Target
    ties: bool
    validators: Validators

    def write(self, rows: Iterable[ExportRow], report: ExportReport) -> Iterator[str]:
        keyed = Keyed(report, "Inductor's key leaves out how it was measured")
        device = next(iter(self.validators.values.values()))
        for row in rows:
            try:
                self.validators.check(row.environment)
                self._check_torch(row.environment)
                written, entry = best_named(row, _TARGETS, self._entry, report)
                key = f"{device}+{mm_key(row.problem)}"
                keyed.put(key, written, f",\n{dumps(key)}:[{entry}]")
            except OmittedError as reason:
                report.omit(str(reason), row.problem)
        yield "{" + self._about(device)
        yield from keyed.texts()
        yield "\n}\n"

    def _about(self, device: str) -> str:
        """A member about the file, under a key of no call; a list of dicts like the table's other members."""
        about = {
            "about": f"gemmtune: EXPERIMENTAL lookup table of Inductor, {self.target.text}, on {device}",
            "load": _LOAD,
        }
        return f'"gemmtune":[{dumps(about)}]'

    def _check_torch(self, environment: Environment) -> None:
        version = environment.libraries.get("torch")
        if version is None:
            raise OmittedError("its environment says no torch, whose template or call the table names")
        if not self.target.is_build(version):
            raise OmittedError(f"measured under torch {version}: the file is for {self.target.text}")

    def _entry(self, row: ExportRow) -> str:
        """The one configuration of the row's problem. Raises OmittedError."""
        if row.judgement not in ("WIN", "TIE", "LOSS", ""):
            raise OmittedError(f"judgement {row.judgement!r} is none that a table could follow")
        if row.judgement in ("TIE", "LOSS"):
            if not self.ties:
                raise OmittedError(
                    f"{row.judgement}: Inductor chooses for itself (ties=default writes torch's own call out)"
                )
            if row.baseline is None or row.baseline.family != "torch":
                raise OmittedError(f"{row.judgement}: its baseline is not torch's own call")
            return _ATEN
        if row.solution.family == "torch":  # torch's call beat another baseline
            return _ATEN
        return _template(row.solution, row.problem.k, self.target.rocm)


def _template(solution: Solution, k: int, rocm: bool) -> str:
    """The parameters of Inductor's template "mm". Raises OmittedError."""
    values = dict(solution.parameters)
    if solution.family != FAMILY:
        raise UnnamedError(
            f"solutions of family {solution.family} have no name in Inductor's table; known: {FAMILY}"
        )
    known = (*PARAMETERS, *(HIP_PARAMETERS if rocm else ()))
    missing, unknown = [n for n in PARAMETERS if n not in values], [n for n in values if n not in known]
    if missing or unknown:
        wrong = f"lacks {missing[0]}" if missing else f"does not take {unknown[0]}"
        raise UnnamedError(f"its solution is none of Inductor's template mm, which {wrong}")
    found: dict[str, object] = {"template_id": "triton::mm"}
    for name in known:
        if name in values:
            value = values[name]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
                raise UnnamedError(f"{name} of its solution is no whole number from 0")
            found[name] = value
    step = found["BLOCK_K"]
    if not isinstance(step, int) or not all(found[name] for name in PARAMETERS if name != "num_stages"):
        raise UnnamedError("a size of its solution is 0")
    # Releases before 2.12 take these from the table only; later ones would take them from a configuration
    # of their own, which has another BLOCK_K.
    found |= {"EVEN_K": k % step == 0, "ACC_TYPE": "tl.float32", "USE_FAST_ACCUM": False}
    return dumps(found)


def mm_key(p: GemmProblem) -> str:
    """The operands and the operation of a key, without the device. Raises OmittedError for a problem that
    Inductor does not lower to aten.mm, or that its key would not record in full."""
    dtype = _DTYPES.get(p.dtype_a)
    if dtype is None or p.compute != "fp32" or not p.dtype_a == p.dtype_b == p.dtype_d:
        raise OmittedError(
            f"{p.dtype_a} computed in {p.compute} to {p.dtype_d}: only fp16 and bf16 with fp32 sums have "
            "keys of their own"
        )
    if p.batch > 1 or p.epilogue != "none" or p.scale_dtype is not None:
        raise OmittedError("batches, epilogues and scales are no aten.mm: only plain mm is written")
    if p.alignment != 16:
        raise OmittedError("a key says nothing of alignments below 16 bytes")
    if (p.alpha, p.beta, p.ldd) != ("one", "zero", p.m):
        raise OmittedError("aten.mm has alpha 1, beta 0 and a packed result")
    # Row-major: BLAS B is mat1 [n,k] and BLAS A is mat2 [k,m].
    first = [p.ldb, 1] if p.trans_b == "N" else [1, p.ldb]
    second = [p.lda, 1] if p.trans_a == "N" else [1, p.lda]
    return f"(({dtype}, [{p.n}, {p.k}], {first}), ({dtype}, [{p.k}, {p.m}], {second}))+mm"
