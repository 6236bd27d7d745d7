"""The recording of what the genuine libraries answered (tests/data/hip/enumeration.json.gz).

A gzipped JSON object: `format`, `provenance` (versions, date, SHA-256 of the libraries' files, command), `devices`
(architecture -> answers.py's answers), `names`, `no_device`, `hiprtc`, `headers`. To keep it small, sorted lists
of indices hold differences, and names of kernels are stored once, each as the places where it differs from the
one before it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from os.path import commonprefix
from pathlib import Path
from typing import Any

FORMAT = 1
FILE = Path(__file__).parents[3] / "data" / "hip" / "enumeration.json.gz"
#: Lists that are sorted.
_SORTED = frozenset({"every", "of_problem", "of_types", "passed"})
#: Answers that no two runs agree in.
_PASSING = frozenset({"seconds", "date"})


def digest(value: Any) -> str:
    """The SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def load(path: Path = FILE) -> dict[str, Any]:
    """A recording, as record.py made it."""
    packed: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    if packed["format"] != FORMAT:
        raise ValueError(f"{path} has format {packed['format']}, not {FORMAT}: record it again (make genuine)")
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
    """Writes a recording; the same one gives the same bytes."""
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
    """What differs between two recordings, as sentences; measured times and dates are passed over, and of lists
    without an order, which a run's addresses decide, only the elements count."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [key for key in {**old, **new} if key not in _PASSING]
        found = []
        for key in keys:
            if key not in old or key not in new:
                found.append(f"{where}{key}: only in the {'old' if key in old else 'new'} one")
            else:
                found += differences(old[key], new[key], f"{where}{key}: ")
        return found
    if isinstance(old, list) and isinstance(new, list) and where.endswith(("heuristic: ", "first: ")):
        old, new = sorted(old), sorted(new)
    if old == new:
        return []
    if isinstance(old, list) and isinstance(new, list):
        same = sum(a == b for a, b in zip(old, new, strict=False))
        return [f"{where}{len(old)} before, {len(new)} now, {same} the same at their places"]
    return [f"{where}{str(old)[:120]} before, {str(new)[:120]} now"]


# ---- to keep it small


def _differences(values: Sequence[int]) -> list[int]:
    return [value - before for before, value in zip((0, *values), values, strict=False)]


def _shortened(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _shortened(one, name) for name, one in value.items()}
    return _differences(value) if key in _SORTED and isinstance(value, list) else value


def _restored(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _restored(one, name) for name, one in value.items()}
    return list(accumulate(value)) if key in _SORTED and isinstance(value, list) else value


def _fold(texts: Sequence[str]) -> list[list[Any]]:
    """Each as the length of what it shares with the one before it, and the rest."""
    shared = [len(commonprefix(pair)) for pair in zip(("", *texts), texts, strict=False)]
    return [[length, text[length:]] for length, text in zip(shared, texts, strict=True)]


def _unfold(folded: Sequence[Sequence[Any]]) -> list[str]:
    texts: list[str] = []
    for length, rest in folded:
        texts.append((texts[-1][:length] if texts else "") + rest)
    return texts
