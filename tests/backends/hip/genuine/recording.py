"""The recording of what the genuine libraries answered (tests/data/hip/enumeration.json.gz).

A gzipped JSON object:

    format       FORMAT
    provenance   date, command, versions of the packages, SHA-256 of the libraries' files
    devices      architecture -> what answers.py and library_logs.py wrote
    no_device    the genuine runtime without a GPU (without_device.py)
    hiprtc       what hipRTC compiled (without_device.py)
    headers      the comparison with ROCm's headers (headers.py)
    unguarded    how calls end that the backend never makes (record.py)
    names        the names of kernels and solutions

To keep the file small, sorted lists of indices are stored as differences. Names are sorted, and each is
stored as the length of the prefix that it shares with the one before it, and the rest.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

FORMAT = 2
FILE = Path(__file__).parents[3] / "data" / "hip" / "enumeration.json.gz"
#: Keys of sorted lists.
_SORTED = frozenset({"every", "of_problem", "of_types", "passed"})
#: Keys that are not compared.
_IGNORED = frozenset({"date"})


def digest(value: Any) -> str:
    """The SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def load(path: Path = FILE) -> dict[str, Any]:
    """Reads a recording. Raises ValueError if it has another format."""
    packed: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    if packed["format"] != FORMAT:
        raise ValueError(
            f"{path} has format {packed['format']}, not {FORMAT}: record it again (make genuine)"
        )
    texts = _unfold(packed.pop("names"))
    devices = {arch: _restored(answers) for arch, answers in packed["devices"].items()}
    for answers in devices.values():
        names = answers["hipblaslt"]["names"]
        indices = accumulate(names["indices"])
        pairs = zip(names["kernels"], names["solutions"], strict=True)
        answers["hipblaslt"]["names"] = {
            index: [texts[kernel], texts[solution]]
            for index, (kernel, solution) in zip(indices, pairs, strict=True)
        }
    return {**packed, "devices": devices}


def save(recording: Mapping[str, Any], path: Path) -> None:
    """Writes a recording. Equal recordings give equal bytes."""
    texts = sorted(
        {
            text
            for answers in recording["devices"].values()
            for names in answers["hipblaslt"]["names"].values()
            for text in names
        }
    )
    places = {text: place for place, text in enumerate(texts)}
    devices = {}
    for arch, answers in recording["devices"].items():
        named = sorted(answers["hipblaslt"]["names"].items())
        names = {
            "indices": _differences([index for index, _ in named]),
            "kernels": [places[kernel] for _, (kernel, _) in named],
            "solutions": [places[solution] for _, (_, solution) in named],
        }
        devices[arch] = _shortened({**answers, "hipblaslt": {**answers["hipblaslt"], "names": names}})
    packed = {**recording, "format": FORMAT, "devices": devices, "names": _fold(texts)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(packed, separators=(",", ":")).encode(), 9, mtime=0))


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """The differences between two recordings, a line each. Dates are ignored. Lists whose order depends on
    addresses are compared as multisets."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [key for key in {**old, **new} if key not in _IGNORED]
        found = []
        for key in keys:
            if key not in old or key not in new:
                found.append(f"{where}{key}: only in the {'old' if key in old else 'new'} recording")
            else:
                found += differences(old[key], new[key], f"{where}{key}: ")
        return found
    if isinstance(old, list) and isinstance(new, list) and where.endswith(("heuristic: ", "first: ")):
        old, new = sorted(old), sorted(new)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new) == 1:
        return differences(old[0], new[0], where)
    if old == new:
        return []
    if isinstance(old, list) and isinstance(new, list):
        same = sum(a == b for a, b in zip(old, new, strict=False))
        return [f"{where}{len(old)} before, {len(new)} now, {same} the same at their places"]
    return [f"{where}{str(old)[:120]} before, {str(new)[:120]} now"]


# ---- compression


def _differences(values: Sequence[int]) -> list[int]:
    return [value - before for before, value in pairwise((0, *values))]


def _shortened(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _shortened(one, name) for name, one in value.items()}
    return _differences(value) if key in _SORTED and isinstance(value, list) else value


def _restored(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _restored(one, name) for name, one in value.items()}
    return list(accumulate(value)) if key in _SORTED and isinstance(value, list) else value


def _fold(texts: Sequence[str]) -> list[list[Any]]:
    """Each text as the length of the prefix that it shares with the one before it, and the rest."""
    pairs = [(_shared(before, text), text) for before, text in pairwise(("", *texts))]
    return [[length, text[length:]] for length, text in pairs]


def _shared(a: str, b: str) -> int:
    """The length of the common prefix."""
    most = min(len(a), len(b))
    return next((place for place in range(most) if a[place] != b[place]), most)


def _unfold(folded: Sequence[Sequence[Any]]) -> list[str]:
    texts: list[str] = []
    for length, rest in folded:
        texts.append((texts[-1][:length] if texts else "") + rest)
    return texts
