"""A user's kernel: its source text, and what the text states of itself. Reading one never runs it."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backends.canonical import slug
from backends.errors import ReadError
from backends.user_kernels.contract import Contract, read_features, read_types
from backends.user_kernels.extents import NAMES, evaluate

#: The name of the function or kernel in a source.
ENTRY = "gemm"
#: The families of problems that a kernel may be judged on.
FAMILIES_OF = ("gemm",)
#: Before the name of a user's family, so that it is none of ours.
PREFIX = "user."
#: Suffix -> language.
LANGUAGES: Mapping[str, str] = {
    ".py": "python", ".cpp": "c++", ".cc": "c++", ".cxx": "c++", ".cu": "cuda", ".hip": "cuda",
}  # fmt: skip
#: Largest source file in bytes.
MOST_BYTES = 2**20
#: Extents of a problem of 1 x 1 x 1, by which a header is checked before there is a problem.
_SMALLEST = dict.fromkeys(NAMES, 1)
_CONSTANTS = ("FAMILY_OF", "TYPES", "FEATURES", "ARRAYS")
_LINE = re.compile(r"^[ \t]*//[ \t]*gemmtune:[ \t]*(\w+)[ \t]*(.*?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class LaunchText:
    """A CUDA kernel's launch: expressions of the sizes (extents.py) for its grid, its block and its bytes of
    dynamic shared memory."""

    grid: str
    block: str
    shared: str = "0"


@dataclass(frozen=True)
class UserKernel:
    """A source with its contract. `arrays`: what a Python function is given, torch or numpy. `arguments`: the
    parameters of a Python function; empty: it takes any keyword."""

    name: str
    language: str
    text: str
    contract: Contract
    arrays: str = "torch"
    arguments: tuple[str, ...] = ()
    launch: LaunchText | None = None
    family_of: str = "gemm"
    file: str = field(default="", compare=False)

    @property
    def digest(self) -> str:
        """The SHA-256 of the source, in hex digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def writes_out(self) -> bool:
        """Whether a Python function is given the output; else its return value is copied there."""
        return not self.arguments or "out" in self.arguments


def read_kernel(path: Path, family_of: str = "gemm") -> UserKernel:
    """Reads a source file by its suffix. Raises ReadError for a file that cannot be read or that states no
    kernel."""
    if family_of not in FAMILIES_OF:
        raise ReadError(f"--family-of {family_of[:40]!r} is unknown; known: {', '.join(FAMILIES_OF)}")
    language = LANGUAGES.get(path.suffix)
    if language is None:
        raise ReadError(f"{path} is no kernel: its name must end in {', '.join(LANGUAGES)}")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ReadError(f"{path} has over {MOST_BYTES} bytes, which no kernel's source needs")
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ReadError(f"cannot read {path}: {error}") from error
    stem = slug(path.stem)
    if not stem:
        raise ReadError(f"{path} has no letter or digit in its name, which its family is called by")
    read = _read_python if language == "python" else _read_cpp
    kernel = read(path, PREFIX + stem[:60], language, text)
    if kernel.family_of != family_of:
        raise ReadError(f"{path} says FAMILY_OF = {kernel.family_of!r}, not {family_of!r}")
    return kernel


# ---- Python --------------------------------------------------------------------------------------


def _read_python(path: Path, name: str, language: str, text: str) -> UserKernel:
    try:
        tree = ast.parse(text, str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ReadError(f"{path} is no Python: {error}") from error
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == ENTRY]
    if not functions:
        raise ReadError(f"{path} defines no function {ENTRY}(a, b, out) at its top level")
    arguments = functions[-1].args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    if len(names) < 2:
        raise ReadError(f"{path}: {ENTRY} takes {len(names)} arguments; it is called with a, b and out")
    constants = _constants(tree)
    keywords = [*names[2:], *(one.arg for one in arguments.kwonlyargs)]
    where, everything = str(path), arguments.kwarg is not None
    by_name = {"alpha": {"alpha"}, "beta": {"beta", "c"}, "bias": {"bias"}, "activation": {"activation"}}
    features = {name for name, needed in by_name.items() if everything or needed <= set(keywords)}
    stated = constants.get("FEATURES", ("padded", "transposed"))
    features |= read_features(_words(stated, "FEATURES", where), where)
    return UserKernel(
        name, language, text,
        Contract(read_types(_words(constants.get("TYPES", ()), "TYPES", where), where), frozenset(features)),
        _arrays(constants.get("ARRAYS", "torch"), where),
        () if everything else (*names[:2], *keywords),
        family_of=str(constants.get("FAMILY_OF", "gemm")), file=path.name,
    )  # fmt: skip


def _constants(tree: ast.Module) -> dict[str, object]:
    """The literals that the module assigns to names in capitals."""
    found: dict[str, object] = {}
    for node in tree.body:
        match node:
            case ast.Assign([ast.Name(name)], value) if name in _CONSTANTS:
                try:
                    found[name] = ast.literal_eval(value)
                except ValueError as error:
                    raise ReadError(
                        f"line {node.lineno}: {name} must be a literal: the file is read before it is run"
                    ) from error
    return found


def _words(value: object, name: str, where: str) -> tuple[str, ...]:
    if isinstance(value, (tuple, list, set)) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise ReadError(f"{where}: {name} must be a tuple of texts, not {value!r}")


def _arrays(value: object, where: str) -> str:
    if value not in ("torch", "numpy"):
        raise ReadError(f"{where}: ARRAYS must be 'torch' or 'numpy', not {value!r}")
    return str(value)


# ---- C++ and CUDA --------------------------------------------------------------------------------


def _read_cpp(path: Path, name: str, language: str, text: str) -> UserKernel:
    if re.search(rf"\b{ENTRY}\s*\(", text) is None:
        raise ReadError(f'{path} has no extern "C" function {ENTRY}(...)')
    stated: dict[str, str] = {}
    where = str(path)
    for key, value in _LINE.findall(text):
        if key not in ("types", "features", "grid", "block", "shared"):
            raise ReadError(f"{where}: `// gemmtune: {key}` is unknown; known: types, features, grid, block, "
                            "shared")  # fmt: skip
        if key in stated:
            raise ReadError(f"{where} states `// gemmtune: {key}` twice")
        stated[key] = value
    if "types" not in stated:
        raise ReadError(f"{where} states no types: write a line such as `// gemmtune: types fp32`")
    split = re.compile(r"[,\s]+")
    contract = Contract(
        read_types(filter(None, split.split(stated["types"])), where),
        read_features(filter(None, split.split(stated.get("features", ""))), where),
    )
    if not contract.types:
        raise ReadError(f"{where}: `// gemmtune: types` names none")
    launch = None
    if language == "cuda":
        for key in ("grid", "block"):
            if key not in stated:
                raise ReadError(f"{where} states no {key}: write a line such as `// gemmtune: {key} 16, 16`")
        launch = LaunchText(stated["grid"], stated["block"], stated.get("shared", "0"))
        for key, most in (("grid", 3), ("block", 3), ("shared", 1)):
            if not 1 <= len(evaluate(getattr(launch, key), _SMALLEST)) <= most:
                raise ReadError(f"{where}: `// gemmtune: {key}` has at most {most} extents")
    return UserKernel(name, language, text, contract, launch=launch, file=path.name)
