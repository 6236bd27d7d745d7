"""The outputs that are an export format's text: TunableOp, vLLM, SGLang and a C header."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from backends.counted import counted
from backends.errors import StorageError
from backends.grouping import SCALED_TYPES, TYPES
from service.formats import WRITERS
from service.formats.core.export import ExportOptions, ExportRefused, ExportRow
from service.formats.tunableop.target import contradicts, parse_target, settle
from service.model.gain import ModelReport
from service.model.request import Output, Request, Written
from service.model.rows import environments_of

_GPUS = ("cuda", "hip")


def _text(
    format_name: str, request: Request, rows: Sequence[ExportRow], target: str | None, ties: str = "omit"
) -> tuple[str, ModelReport]:
    """The text of an export of the rows. Raises ExportRefused where it would hold none."""
    if not rows:
        raise ExportRefused(
            f"nothing is known of {request.plan.name} on {request.device}: no file was written"
        )
    report = ModelReport()
    options = ExportOptions(
        request.device, target, ties, request.validators, environments_of(rows), request.workspace_limit
    )
    for row in rows:
        report.measured(row)
    text = "".join(WRITERS[format_name].write(iter(rows), options, report))
    if not report.written:
        reason, count = max(report.omitted.items(), key=lambda item: item[1])
        raise ExportRefused(
            f"no file was written: none of {counted(len(rows), 'known row')} can be; "
            f"{count} of them: {reason}"
        )
    return text, report


def write_text(path: Path, text: str) -> Path:
    """Writes a file whole or not at all. Raises StorageError."""
    fresh = path.with_name(f".{path.name}.part")
    try:
        fresh.write_text(text)
        fresh.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
    return path


# ---- TunableOp -----------------------------------------------------------------------------------

_STEM = "tunableop_results"


def _check_tunableop(request: Request) -> None:
    target = parse_target(request.target)
    if target.vendor != request.device.vendor:
        raise ExportRefused(f"{target.text} runs on {target.vendor} devices, not on {request.device}")
    if not target.families:
        raise ExportRefused(
            f"TunableOp of {target.text} can name no solution but its own default, so its file would change "
            "nothing; rows name cuBLASLt algorithms from torch 2.14 on"
        )
    if request.environments:
        options = ExportOptions(request.device, request.target, validators=request.validators)
        _, header = settle(target, options, request.environments)
        for key, value in header.items():
            said = None if key == "PT_VERSION" else contradicts(request.environments[0], key, value)
            if said is not None:
                raise ExportRefused(
                    f"{target.text} has {key} {value}, and problems are tuned here under {said}: torch would "
                    "ignore such rows; tune with the libraries that the model runs with, or name them"
                )


def _tunableop(request: Request, rows: Sequence[ExportRow]) -> Written:
    """One copy of the file for each device: a process reads the one with its device's ordinal in its name."""
    target = parse_target(request.target)
    text, report = _text("tunableop", request, rows, request.target)
    folder = request.folder.absolute()
    files = tuple(
        write_text(folder / f"{_STEM}{ordinal}.csv", text) for ordinal in range(request.plan.devices)
    )
    lines = [
        "export PYTORCH_TUNABLEOP_ENABLED=1",
        "export PYTORCH_TUNABLEOP_TUNING=0",
        f"export PYTORCH_TUNABLEOP_FILENAME={shlex.quote(str(folder / _STEM))}%d.csv",
    ]
    notes = [
        "every torch from 2.4 to 2.15 replaces %d by the ordinal of the process's device (without %d it puts "
        f"the ordinal before the last dot): {_STEM}0.csv is read on device 0"
        + (f", and so on: there is a copy for each of {len(files)} devices" if len(files) > 1 else ""),
        f"torch reads the file only if it is {', '.join(f'{k} {v}' for k, v in _header(text))}",
    ]
    own = target.workspace(request.device.arch)
    if own is not None and report.workspace_bytes > own:
        kib = -(-report.workspace_bytes // 1024)
        lines.append(f"export CUBLASLT_WORKSPACE_SIZE={kib}")
        notes.append(
            f"some rows need {report.workspace_bytes} bytes of workspace, more than the {own} that "
            f"{target.text} gives: CUBLASLT_WORKSPACE_SIZE (KiB) raises it, for each stream"
        )
    return Written(files, tuple(lines), tuple(notes), report)


def _header(text: str) -> Iterable[tuple[str, str]]:
    for line in text.splitlines():
        if not line.startswith("Validator,"):
            return
        _, key, value = line.split(",", 2)
        yield key, value


# ---- vLLM and SGLang -----------------------------------------------------------------------------


def _check_block_fp8(stack: str) -> Callable[[Request], None]:
    def check(request: Request) -> None:
        if not any(item.problem.scale_a.startswith("block") for item in request.plan.problems):
            kinds = ", ".join(sorted({item.problem.dtype_a for item in request.plan.problems}))
            raise ExportRefused(
                f"{stack} reads tuned configurations of block-scaled fp8 layers only, and this model's "
                f"layers are {kinds}; --for tunableop serves them where {stack} calls torch's own GEMMs"
            )

    return check


def _block_fp8(format_name: str, package: str) -> Callable[[Request, Sequence[ExportRow]], Written]:
    def write(request: Request, rows: Sequence[ExportRow]) -> Written:
        # A file replaces the whole default of its weight, so it also says where the default is best.
        text, report = _text(format_name, request, rows, None, ties="default")
        path = write_text(request.folder.absolute() / f"{format_name}.tar", text)
        where = (
            "import importlib.util as u, os; "
            f'print(os.path.dirname(u.find_spec("{package}").submodule_search_locations[0]))'
        )
        lines = (f"tar -xf {shlex.quote(str(path))} -C \"$(python3 -c '{where}')\"",)
        notes = (
            f"{package} looks its files up beside its own code and nowhere else; a file replaces the default "
            "of its weight for every number of tokens: the entry with the nearest number is taken",
        )
        return Written((path,), lines, notes, report)

    return write


def _check_moe(stack: str) -> Callable[[Request], None]:
    def check(request: Request) -> None:
        types = {item.problem.dtype_a for item in request.plan.problems}
        if not types & {*TYPES, *SCALED_TYPES}:
            said = [row.reason for row in request.plan.read.rejected if "routed experts" in row.reason]
            said += [f"its routed experts are {name}" for name in sorted(types)]
            raise ExportRefused(
                f"{stack} reads fused-MoE configurations for routed experts of bf16, fp16 and e4m3, and this "
                f"model has none: {said[0] if said else 'its layers are dense'}"
            )
        if request.fetch is not None:
            raise ExportRefused(
                "a service tunes a model's experts (gemmtune import config.json --tune --server URL) and "
                "writes their file (gemmtune export vllm-moe --server URL); --for it works without --server"
            )

    return check


def _moe(format_name: str, variable: str) -> Callable[[Request, Sequence[ExportRow]], Written]:
    def write(request: Request, rows: Sequence[ExportRow]) -> Written:
        keys = {item.problem.id: item.keys for item in request.plan.problems}
        named = [replace(row, keys=keys[row.problem.id]) for row in rows]
        text, report = _text(format_name, request, named, None, ties="default")
        path = write_text(request.folder.absolute() / f"{format_name}.tar", text)
        folder = shlex.quote(str(path.with_suffix("")))
        lines = (
            f"mkdir -p {folder} && tar -xf {shlex.quote(str(path))} -C {folder}",
            f"export {variable}={folder}",
        )
        gain = report.gain()
        notes = (
            "a file replaces the default of its layer for every number of tokens: the entry with the nearest "
            "number is taken",
            *(
                ()
                if gain is None
                else (
                    "both products of a layer together, over "
                    f"{counted(gain['rows'], 'number')} of tokens: "
                    f"{gain['geometric_mean']:.3f}x of what runs without the file",
                )
            ),
        )
        return Written((path,), lines, notes, report)

    return write


# ---- a C header ----------------------------------------------------------------------------------


def _check_c_header(request: Request) -> None:
    options = ExportOptions(request.device, request.target, validators=request.validators)
    WRITERS["c-header"].write(iter(()), options, ModelReport())


def _c_header(request: Request, rows: Sequence[ExportRow]) -> Written:
    text, report = _text("c-header", request, rows, request.target)
    path = write_text(request.folder.absolute() / "gemmtune.h", text)
    lines = (
        f'#include "{path}"',
        "const gemmtune_row *row = gemmtune_lookup(&problem);",
        "if (row != NULL) { const gemmtune_solution *solution = gemmtune_solution_of(row); /* run it */ }",
    )
    return Written((path,), lines, ("the header says how a problem is filled in",), report)


#: Every output that is an export format's text.
TEXT_OUTPUTS = (
    Output("tunableop", "PyTorch's TunableOp", _GPUS, _check_tunableop, _tunableop, "sh", "tunableop", True),
    Output(
        "vllm", "vLLM's block-fp8 kernel", _GPUS, _check_block_fp8("vLLM"),
        _block_fp8("vllm-block-fp8", "vllm"),
    ),
    Output(
        "sglang", "SGLang's block-fp8 kernel", _GPUS, _check_block_fp8("SGLang"),
        _block_fp8("sglang-block-fp8", "sglang"),
    ),
    Output(
        "vllm-moe", "vLLM's fused mixture of experts", _GPUS, _check_moe("vLLM"),
        _moe("vllm-moe", "VLLM_TUNED_CONFIG_FOLDER"), format_name="vllm-moe", products="experts",
    ),
    Output(
        "sglang-moe", "SGLang's fused mixture of experts", _GPUS, _check_moe("SGLang"),
        _moe("sglang-moe", "SGLANG_MOE_CONFIG_DIR"), format_name="sglang-moe", products="experts",
    ),
    Output(
        "c-header", "a program's own dispatch", ("cpu", *_GPUS), _check_c_header, _c_header, "c", "c-header"
    ),
)  # fmt: skip
