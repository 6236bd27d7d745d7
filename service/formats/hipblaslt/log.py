"""hipBLASLt's bench log, HIPBLASLT_LOG_MASK=32: a hipblaslt-bench command line a call, column-major.

    hipblaslt-bench --api_method c -m 48 -n 176 -k 1024 --lda 48 ... --transA N --transB T
        --batch_count 1 --scaleA 0 --scaleB 0 --a_type bf16_r ... --compute_type f32_r
        --algo_method index --solution_index 218160 --activation_type none         (one line)

How its options are read:

- sizes, types and the compute type must be there; what else is missing is what hipblaslt-bench takes then:
  N, alpha 1, beta 0, one batch, the least leading dimension, packed batches, no scales, no epilogue;
- the log writes stride 0 for a single GEMM, which has none; in a batch, stride 0 broadcasts the operand;
- scaleA and scaleB: 0 none, 1 a scale a tensor, 2 a vector (a scale a row of A, a column of B), in fp32; the
  block scales beyond 2 are rejected, for the log does not say their blocks;
- bias_type counts only where --bias_vector stands; a bias source other than d is a gradient's;
- f32_f16_r and its like round the operands before they are multiplied, which no compute type here says;
- options that choose a kernel or how it is timed change no problem; any other option is rejected.

Other masks write lines that start with [time][HIPBLASLT] or with a flow map of a function; these are
skipped. Source: rocblaslt's logBench, hipBLASLt's documentation of hipblaslt-bench and of its logs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_blas
from service.formats.core.base import Declaration, Entry, Rejected, decode_lines, rejected
from service.formats.core.rocm_values import accumulator, operation, scalar, storage, whole
from service.formats.tunableop.signature import BadLineError, quote

_PROGRAM = "hipblaslt-bench"
_SEEN = re.compile(rb"(?:^|\n)(?:\xef\xbb\xbf)?[ \t]*(?:\S{0,200}/)?hipblaslt-bench[ \t]+-")
#: Lines of the log's other masks: trace, hints, info; and the profiles.
_OTHER = re.compile(r"\[[0-9: .-]{1,40}\]\[hipblaslt(?:-[a-z]+)?\]|- *\{ *function *:", re.IGNORECASE)
#: Calls whose problem is cached (a program runs few problems many times), and the longest line that is.
_REMEMBERED, _SHORT = 4096, 1024

_NAMES = {"-m": "m", "--sizem": "m", "-n": "n", "--sizen": "n", "-k": "k", "--sizek": "k"}
_NAMES |= {
    f"--{name}": name
    for name in (
        "lda", "ldb", "ldc", "ldd", "stride_a", "stride_b", "stride_c", "stride_d", "alpha", "beta",
        "transA", "transB", "batch_count", "scaleA", "scaleB", "scaleC", "scaleD", "a_type", "b_type",
        "c_type", "d_type", "compute_type", "bias_type", "bias_source", "activation_type",
        "activation_arg1", "activation_arg2",
    )
}  # fmt: skip
#: Options with a value that choose a kernel, or how it is run, timed, checked or printed.
_IGNORED = {
    f"--{name}"
    for name in (
        "function", "api_method", "algo_method", "solution_index", "requested_solution", "scale_type",
        "aux_type", "iters", "cold_iters", "rotating", "workspace", "initialization", "device", "splitk",
        "wgm", "skip_slow_solution_ratio", "tensile_solution_selection_method",
    )
} | {"-f", "-i", "-j"}  # fmt: skip
_BARE = {"--bias_vector"}
_BARE_IGNORED = {"--flush", "--use_gpu_timer", "--print_kernel_info", "--any_stride", "--verify", "-v"}
#: Options for which no problem here exists, and what they ask for.
_OTHER_PROBLEM = {
    "--grouped_gemm": "a group of GEMMs",
    "--gradient": "a gradient's epilogue",
    "--use_e": "an auxiliary output",
    "--scaleAlpha_vector": "a vector of alphas",
    "--amaxD": "the largest value of the output",
    "--amaxScaleA": "scales computed from A",
    "--amaxScaleB": "scales computed from B",
    "--swizzleA": "a swizzled A",
    "--swizzleB": "a swizzled B",
}
#: Options that may stand without a value, which is 1 then: they were switches before they had modes.
_OPTIONAL_VALUE = {"scaleA", "scaleB", "scaleC", "scaleD"}
_REQUIRED = ("m", "n", "k", "a_type", "b_type", "c_type", "d_type", "compute_type")

_COMPUTE = {"f32_r": "fp32", "xf32_r": "tf32", "f64_r": "fp64", "i32_r": "int32", "f16_r": "fp16"}
_ACTIVATIONS = {"none": "none", "relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
_SCALES = {"0": "none", "1": "tensor", "2": "outer"}


@dataclass(frozen=True)
class HipblasltLog:
    """The format's entry in the registry."""

    name: str = "hipblaslt-log"
    declares: ClassVar[Declaration] = Declaration("hip")
    description: str = "hipBLASLt's log of hipblaslt-bench command lines, HIPBLASLT_LOG_MASK=32"
    example: str = (
        "hipblaslt-bench --api_method c -m 4096 -n 16 -k 4096 --lda 4096 --ldb 4096 --ldc 4096 --ldd 4096 "
        "--stride_a 0 --stride_b 0 --stride_c 0 --stride_d 0 --alpha 1.000000 --beta 0.000000 --transA T "
        "--transB N --batch_count 1 --scaleA 0 --scaleB 0 --a_type bf16_r --b_type bf16_r --c_type bf16_r "
        "--d_type bf16_r --scale_type f32_r --bias_type f32_r --compute_type f32_r --activation_type none"
    )

    def detect(self, head: bytes) -> bool:
        """Whether a line is a command of hipblaslt-bench."""
        return _SEEN.search(head) is not None

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
        """Yields every call, without a key, since its problem records all of it. Skips blank lines and those
        of other masks."""
        known: dict[tuple[tuple[str, str], ...], GemmProblem] = {}
        for decoded in decode_lines(lines):
            if isinstance(decoded, Rejected):
                yield decoded
                continue
            number, text = decoded[0], decoded[1].strip(" \t")
            if not text or _OTHER.match(text):
                continue
            try:
                options = parse_options(text)
                asked = tuple(options.items())
                problem = known.get(asked)
                if problem is None:
                    problem = build_problem(options)
                    if len(known) >= _REMEMBERED:
                        known.clear()
                    if len(text) <= _SHORT:
                        known[asked] = problem
                yield Entry(number, problem, "")
            except (BadLineError, InvalidProblem) as error:
                yield rejected(number, error, text)


def parse_options(text: str) -> dict[str, str]:
    """The options of one hipblaslt-bench command line that make its problem. Raises BadLineError."""
    if not text.replace("\t", " ").isprintable():
        raise BadLineError("the line holds control characters")
    program, *words = _split(text)
    if program.rpartition("/")[2] != _PROGRAM:
        raise BadLineError(
            f"no {_PROGRAM} command line; hipBLASLt writes them with HIPBLASLT_LOG_MASK=32, and "
            "HIPBLASLT_LOG_FILE keeps them apart from a program's other output"
        )
    return _options(words)


def build_problem(options: dict[str, str]) -> GemmProblem:
    """The problem of a command line's options. Raises BadLineError or InvalidProblem."""
    for name in _REQUIRED:
        if name not in options:
            raise BadLineError(f"{name} is missing: the line is cut short, or no call's log")
    return from_blas(**_sizes(options), **_types(options), **_epilogue(options))


def _split(text: str) -> list[str]:
    # shlex goes character by character, and without quotes and escapes it finds no more than split().
    if '"' not in text and "'" not in text and "\\" not in text:
        return text.split()
    try:
        return shlex.split(text) or [""]
    except ValueError as error:
        raise BadLineError(f"the quoting is broken: {error}") from None


def _options(words: list[str]) -> dict[str, str]:
    """The options that make the problem, by name; `bias_vector` is among them if it is set."""
    found: dict[str, str] = {}
    at, count = 0, len(words)
    while at < count:
        word = words[at]
        name = _NAMES.get(word)
        at += 1
        if name is None:
            at += _set_apart(word, found)
            if at > count:
                raise BadLineError(f"the value of {word} is missing: the line is cut short")
            continue
        if name in found:
            raise BadLineError(f"{word} stands twice in the line")
        if name in _OPTIONAL_VALUE and (at == count or words[at].startswith("-")):
            found[name] = "1"
            continue
        if at == count:
            raise BadLineError(f"the value of {word} is missing: the line is cut short")
        found[name] = words[at]
        at += 1
    return found


def _set_apart(word: str, found: dict[str, str]) -> int:
    """How many values an option outside _NAMES takes; one of _BARE is put into `found`."""
    if word in _IGNORED:
        return 1
    if word in _BARE_IGNORED:
        return 0
    if word in _BARE:
        found[word.removeprefix("--")] = ""
        return 0
    if word in _OTHER_PROBLEM:
        raise BadLineError(f"{word} is not supported: it asks for {_OTHER_PROBLEM[word]}")
    if not word.startswith("-"):
        raise BadLineError(f"{quote(word)} stands where an option was expected")
    raise BadLineError(f"option {quote(word)} is unknown; it may change the problem, so the line is not read")


def _sizes(options: dict[str, str]) -> dict[str, Any]:
    call: dict[str, Any] = {name: whole(options[name], name) for name in ("m", "n", "k")}
    call["batch"] = whole(options.get("batch_count", "1"), "batch_count")
    call["trans_a"] = operation(options.get("transA", "N"), "transA")
    call["trans_b"] = operation(options.get("transB", "N"), "transB")
    for name in ("lda", "ldb", "ldc", "ldd"):
        if name in options:
            call[name] = whole(options[name], name)
    for name in ("stride_a", "stride_b", "stride_c", "stride_d"):
        if name in options:
            call[name] = whole(options[name], name, least=0)
    call["alpha"] = scalar(options.get("alpha", "1"), "alpha")
    call["beta"] = scalar(options.get("beta", "0"), "beta")
    return call


def _types(options: dict[str, str]) -> dict[str, Any]:
    call: dict[str, Any] = {
        f"dtype_{side}": storage(options[f"{side}_type"], f"{side}_type") for side in "abcd"
    }
    call["compute"] = accumulator(options["compute_type"], "compute_type", _COMPUTE)
    for side in "AB":
        mode = options.get(f"scale{side}", "0")
        if mode not in _SCALES:
            raise BadLineError(
                f"scale{side} {quote(mode)} is not supported; supported: 0 (none), 1 (scalar), 2 (vector)"
            )
        call[f"scale_{side.lower()}"] = _SCALES[mode]
    if options.get("scaleC", "0") != "0":
        raise BadLineError("scaleC is not supported: no GEMM here scales C apart")
    mode = options.get("scaleD", "0")
    if mode not in ("0", "1"):
        raise BadLineError(f"scaleD {quote(mode)} is not supported; supported: 0 (none), 1 (scalar)")
    call["scale_d"] = _SCALES[mode]
    return call


def _epilogue(options: dict[str, str]) -> dict[str, Any]:
    name = options.get("activation_type", "none")
    if name not in _ACTIVATIONS:
        raise BadLineError(
            f"activation_type {quote(name)} is not supported; supported: {', '.join(_ACTIVATIONS)}"
        )
    activation = _ACTIVATIONS[name]
    for argument in ("activation_arg1", "activation_arg2"):
        # Of the activations read here only swish has an argument: the factor of its sigmoid's input.
        if activation == "silu" and scalar(options.get(argument, "1"), argument) != 1.0:
            raise BadLineError(f"{argument} {quote(options[argument])} of {name} is not supported, only 1 is")
    call: dict[str, Any] = {"activation": activation}
    if "bias_vector" in options:
        source = options.get("bias_source", "d")
        if source != "d":
            raise BadLineError(f"bias_source {quote(source)} is not supported: only d is a bias added to D")
        if "bias_type" not in options:
            raise BadLineError("bias_type is missing: --bias_vector stands without it")
        call["bias"] = storage(options["bias_type"], "bias_type")
    return call
