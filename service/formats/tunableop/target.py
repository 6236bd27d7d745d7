"""The torch builds that TunableOp files are written for: their grammar, validators and limits.

torch ignores a whole results file unless its Validator lines have exactly the keys of the build, each with
the text that the build itself would write. The texts are taken from the request first, then from the
environments that the rows were measured in (from Environment.libraries unless stated otherwise):

    PT_VERSION         the target's own, where it names a patch; else `torch`, without its +suffix
    HIP_VERSION        `hip`, else Environment.runtime: 702, 70253211, or a version such as 7.2.53211
    ROCM_VERSION       `rocm`, as /opt/rocm/.info/version says it
    ROCBLAS_VERSION    `rocblas`, as rocblas_get_version_string says it: 5.2.0.dabb6df2b9
    HIPBLASLT_VERSION  `hipblaslt`, version and git revision: 100202-dabb6df2b9
    GCN_ARCH_NAME      `gcn_arch`, as hipDeviceProp_t says it: gfx942:sramecc+:xnack-; else Environment.arch
                       where that arch has no features
    CUBLASLT_VERSION   `cublaslt`, as cublasLtGetVersion says it: 130200, or a version such as 13.2.0
    CUDA_DEVICE        Environment.arch and product, as cudaDeviceProp says it: 9.0:NVIDIA H200

Source: TuningResultsValidator of aten/src/ATen/cuda/tunable/Tunable.cpp, PyTorch 2.4 to 2.15.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from backends.canonical import slug
from backends.environment import Environment
from backends.export_targets import EXPORT_TARGETS, ExportTarget
from service.formats.core.export import ExportOptions, ExportRefused
from service.formats.core.override import families_of
from service.formats.tunableop.key import Grammar

#: The oldest and the newest release whose format is known.
_OLDEST, _NEWEST = (2, 4), (2, 15)
_TARGET = re.compile(
    r"torch-([0-9]{1,3})\.([0-9]{1,3})(?:\.([0-9]{1,3}))?\+(?:(rocm)[0-9.]*|cu(?:da)?[0-9.]*)"
)
#: The accepted targets, as shown to users.
FORMS = (
    "torch-<major>.<minor>[.<patch>]+rocm, 2.4 to 2.15: rows name rocBLAS and hipBLASLt solutions",
    "torch-<major>.<minor>[.<patch>]+cuda, 2.4 to 2.15: rows name cuBLASLt algorithms from 2.14 on",
)
_EXAMPLES: Mapping[str, str] = {
    "HIP_VERSION": "702",
    "ROCM_VERSION": "6.1.0.0-82-5fabb4c",
    "ROCBLAS_VERSION": "5.2.0.dabb6df2b9",
    "HIPBLASLT_VERSION": "100202-dabb6df2b9",
    "GCN_ARCH_NAME": "gfx942:sramecc+:xnack-",
    "CUBLASLT_VERSION": "130200",
    "CUDA_DEVICE": "9.0:NVIDIA H200",
}

#: Architectures without sramecc and xnack. For the others only the driver knows how these are set.
_FEATURELESS = ("gfx103", "gfx110", "gfx115", "gfx120")
_MIB = 2**20
#: getCUDABlasLtWorkspaceSize() of a CUDA build (aten/src/ATen/cuda/CublasHandlePool.cpp). Up to 2.14 it is
#: cuBLAS's own workspace (32 MiB from Hopper on, else :4096:2:16:8); from 2.15 on it is separate (1 MiB)
#: unless TORCH_CUBLAS_WORKSPACE_CACHE=1. CUBLASLT_WORKSPACE_SIZE (KiB) overrides either.
_UNIFIED_LARGE, _UNIFIED_SMALL, _APART = 32 * _MIB, 4096 * 1024 * 2 + 16 * 1024 * 8, _MIB


@dataclass(frozen=True)
class Target:
    """A torch build. `patch` is None where it was not named."""

    major: int
    minor: int
    patch: int | None
    rocm: bool

    @property
    def text(self) -> str:
        """As it is named in messages: torch 2.15 for ROCm."""
        patch = "" if self.patch is None else f".{self.patch}"
        return f"torch {self.major}.{self.minor}{patch} for {'ROCm' if self.rocm else 'CUDA'}"

    @property
    def vendor(self) -> str:
        """The vendor of the devices that it runs on."""
        return "hip" if self.rocm else "cuda"

    @property
    def families(self) -> tuple[str, ...]:
        """Solution families that its rows can name."""
        return families_of(self.export_targets)

    @property
    def export_targets(self) -> tuple[ExportTarget, ...]:
        """The export targets whose solutions its rows can name."""
        names: tuple[str, ...] = ()
        if self.rocm:
            names = ("rocblas", "hipblaslt")
        elif self.at_least(2, 14):
            names = ("cublaslt", "cublaslt-1mib")
        return tuple(EXPORT_TARGETS[name] for name in names)

    @property
    def grammar(self) -> Grammar:
        """What its keys record."""
        scaled = "none"
        if self.at_least(2, 7):
            scaled = "long" if not self.rocm and self.at_least(2, 15) else "short"
        return Grammar(
            leading_dimensions=self.at_least(2, 7),
            scaled=scaled,
            and_bias=self.at_least(2, 5),
            tf32=self.at_least(2, 8),
            bf16x9=not self.rocm and self.at_least(2, 15),
        )

    @property
    def named_by_layout(self) -> bool:
        """Whether the names of hipBLASLt's solutions repeat the operator's layout."""
        return not self.at_least(2, 7)

    @property
    def validators(self) -> tuple[str, ...]:
        """The keys of the header, in the order in which they are written."""
        if self.rocm:
            hip = (self.major, self.minor, self.patch or 0) >= (2, 9, 1)
            version = "HIP_VERSION" if hip else "ROCM_VERSION"
            return ("PT_VERSION", version, "HIPBLASLT_VERSION", "ROCBLAS_VERSION", "GCN_ARCH_NAME")
        return ("PT_VERSION", "CUBLASLT_VERSION", "CUDA_DEVICE") if self.at_least(2, 14) else ("PT_VERSION",)

    def at_least(self, major: int, minor: int) -> bool:
        """Whether it is that release or a later one."""
        return (self.major, self.minor) >= (major, minor)

    def workspace(self, arch: str) -> int | None:
        """Bytes of workspace that a solution may use by default; None: no limit is known."""
        if self.rocm:
            return None
        if self.at_least(2, 15):
            return _APART
        return _UNIFIED_LARGE if _capability(arch) >= (9, 0) else _UNIFIED_SMALL


def parse_target(text: str | None) -> Target:
    """Parses a target. Raises ExportRefused, which lists the forms, for a text in none of them."""
    forms = "; ".join(FORMS)
    if text is None:
        raise ExportRefused(
            f"a TunableOp file is written for one torch build: give its target, one of: {forms}"
        )
    match = _TARGET.fullmatch(text)
    if match is None:
        raise ExportRefused(f"target {text!r} is none of: {forms}")
    target = Target(int(match[1]), int(match[2]), None if match[3] is None else int(match[3]), bool(match[4]))
    if not _OLDEST <= (target.major, target.minor) <= _NEWEST:
        raise ExportRefused(
            f"target {text!r}: TunableOp's file is known for torch {_OLDEST[0]}.{_OLDEST[1]} to "
            f"{_NEWEST[0]}.{_NEWEST[1]} only; name one of: {forms}"
        )
    return target


# ---- validators ----------------------------------------------------------------------------------


def settle(
    target: Target, options: ExportOptions, environments: Iterable[Environment]
) -> tuple[Target, dict[str, str]]:
    """The target with its patch, and the validators of the header. Raises ExportRefused for an unknown
    validator, and for values that are missing, contradict the target, or cannot stand in the file."""
    given, found = dict(options.validators), [e for e in environments if e.vendor == target.vendor]
    version = given.get("PT_VERSION") or _torch_version(target, found)
    if version:
        target = _with_patch(target, version)
        given["PT_VERSION"] = version
    elif target.rocm and (target.major, target.minor) == (2, 9):
        raise ExportRefused(
            "the validators of torch for ROCm changed with 2.9.1: name the patch, as in torch-2.9.1+rocm"
        )
    unknown = sorted(set(given) - set(target.validators))
    if unknown:
        raise ExportRefused(
            f"{', '.join(unknown)} is no validator of {target.text}, which would drop a file that has it; "
            f"its validators: {', '.join(target.validators)}"
        )
    values: dict[str, str] = {}
    for key in target.validators:
        # PT_VERSION was settled above: an environment's torch may be another release than the target.
        said = (says(environment, key) for environment in found if key != "PT_VERSION")
        value = given.get(key) or next((text for text in said if text), None)
        if value is not None:
            values[key] = _checked(key, value)
    missing = [key for key in target.validators if key not in values]
    if missing:
        known = {**_EXAMPLES, "PT_VERSION": f"{target.major}.{target.minor}.0"}
        examples = ", ".join(f"{key}:{known[key]}" for key in missing)
        raise ExportRefused(
            f"{target.text} needs Validator {', '.join(missing)}, and no environment of the rows says "
            f"{'it' if len(missing) == 1 else 'them'}; give each as a validator (such as {examples}) with "
            "the text that this torch writes into its own results files; the patch of a target is PT_VERSION"
        )
    return target, values


def _torch_version(target: Target, environments: Iterable[Environment]) -> str | None:
    if target.patch is not None:
        return f"{target.major}.{target.minor}.{target.patch}"
    said = (says(environment, "PT_VERSION") for environment in environments)
    prefix = f"{target.major}.{target.minor}."
    return next((text for text in said if text and text.startswith(prefix)), None)


def _with_patch(target: Target, version: str) -> Target:
    match = re.match(r"([0-9]+)\.([0-9]+)\.([0-9]+)[^+]*(\+.*)?", version)
    numbers = None if match is None else (int(match[1]), int(match[2]), int(match[3]))
    if match is not None and match[4]:
        raise ExportRefused(f"PT_VERSION {version!r}: torch writes it without its suffix {match[4]}")
    wanted = (target.major, target.minor, target.patch)
    if numbers is None or numbers[:2] != wanted[:2] or wanted[2] not in (None, numbers[2]):
        raise ExportRefused(f"PT_VERSION {version!r} is not the version of {target.text}")
    return replace(target, patch=numbers[2])


def _checked(key: str, value: str) -> str:
    if "," in value or not value.isprintable() or value != value.strip():
        raise ExportRefused(
            f"{key} {value!r} cannot stand in a TunableOp file, which has no quoting: no commas, control "
            "characters, or blanks at either end"
        )
    if key == "HIPBLASLT_VERSION" and "+file-" in value:
        raise ExportRefused(
            f"HIPBLASLT_VERSION {value!r} is a build without a git revision: torch writes the same text for "
            "every such build, so the file could be loaded with another one"
        )
    return value


def says(environment: Environment, key: str) -> str | None:
    """The text of validator `key` in an environment; None if the environment does not say it."""
    return _SOURCES[key](environment)


def contradicts(environment: Environment, key: str, value: str) -> str | None:
    """What an environment says instead of `value`; None if they agree or the environment does not say it."""
    if key == "GCN_ARCH_NAME":
        said = environment.libraries.get("gcn_arch", environment.arch)
        same = value if ":" in said else value.split(":", maxsplit=1)[0]
        return None if said == same else said
    if key == "CUDA_DEVICE":  # a device class spells the product without blanks
        said = _device_text(environment)
        return None if slug(said) == slug(value) else said
    other = says(environment, key)
    return None if other in (None, value) else other


def build_text(family: str, build: str) -> str:
    """A library's build as its validator spells it."""
    return _decimal(build, 10000, 100) or build if family == "cublaslt" else build


def _library(name: str) -> Callable[[Environment], str | None]:
    return lambda environment: environment.libraries.get(name)


def _torch(environment: Environment) -> str | None:
    match = re.search(r"[0-9]+\.[0-9]+\.[0-9]+[^+\s]*", environment.libraries.get("torch", ""))
    return None if match is None else match[0]


def _hip(environment: Environment) -> str | None:
    text = environment.libraries.get("hip") or environment.runtime
    if re.fullmatch("[0-9]{7,}", text):  # as hipRuntimeGetVersion returns it: 70253211
        return str(int(text) // 10**7 * 100 + int(text) // 10**5 % 100)
    return _decimal(text, 100, 1, 0)


def _gcn_arch(environment: Environment) -> str | None:
    full = environment.libraries.get("gcn_arch", environment.arch)
    return full if ":" in full or full.startswith(_FEATURELESS) else None


def _cublaslt(environment: Environment) -> str | None:
    return _decimal(environment.libraries.get("cublaslt", ""), 10000, 100)


def _cuda_device(environment: Environment) -> str | None:
    # The driver's names have blanks; a product without a blank was taken from a device class.
    known = _capability(environment.arch) != (0, 0) and " " in environment.product
    return _device_text(environment) if known else None


def _device_text(environment: Environment) -> str:
    major, minor = _capability(environment.arch)
    return f"{major}.{minor}:{environment.product}"


def _capability(arch: str) -> tuple[int, int]:
    """(9, 0) for sm_90, (10, 3) for sm_103a; (0, 0) for anything but a CUDA architecture."""
    match = re.fullmatch(r"sm_([0-9]{1,2})([0-9])[a-z]?", arch)
    return (0, 0) if match is None else (int(match[1]), int(match[2]))


def _decimal(text: str, *weights: int) -> str | None:
    """A number unchanged; a version major.minor.patch as the library's number for it, by `weights`."""
    if re.fullmatch("[0-9]+", text):
        return text
    match = re.search(r"([0-9]+)\.([0-9]+)(?:\.([0-9]+))?", text)
    if match is None:
        return None
    parts = [int(part or 0) for part in match.groups()]
    return str(sum(part * weight for part, weight in zip(parts, (*weights, 1), strict=False)))


_SOURCES: Mapping[str, Callable[[Environment], str | None]] = {
    "PT_VERSION": _torch,
    "HIP_VERSION": _hip,
    "ROCM_VERSION": _library("rocm"),
    "ROCBLAS_VERSION": _library("rocblas"),
    "HIPBLASLT_VERSION": _library("hipblaslt"),
    "GCN_ARCH_NAME": _gcn_arch,
    "CUBLASLT_VERSION": _cublaslt,
    "CUDA_DEVICE": _cuda_device,
}
