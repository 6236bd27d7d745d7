"""How a figure was taken, and what of it is identity."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from backends.environment import VENDORS
from backends.errors import InvalidProblem
from backends.registry import BACKENDS, backend
from tuners.policy import CACHES, DEFAULT_MODES, DISTRIBUTIONS, MODES, MeasurementPolicy, read_bytes

#: Stored results carry these ids: a change of one makes every stored result a stranger.
FROZEN = {
    MeasurementPolicy(): "eager-cold-normal-f4afe6dd",
    MeasurementPolicy("graph", "warm", "uniform", 2**20, True): "graph-warm-uniform-f4f22eb9",
}


@pytest.mark.parametrize("policy", FROZEN, ids=list(FROZEN.values()))
def test_ids_are_frozen(policy: MeasurementPolicy) -> None:
    assert policy.id == FROZEN[policy]


def test_every_field_but_the_memory_share_is_identity() -> None:
    plain = MeasurementPolicy()
    others = [
        replace(plain, mode="graph"),
        replace(plain, cache="warm"),
        replace(plain, distribution="uniform"),
        replace(plain, max_workspace_bytes=0),
        replace(plain, max_workspace_bytes=1),
        replace(plain, deterministic_only=True),
    ]
    assert len({policy.id for policy in [plain, *others]}) == 7
    assert replace(plain, memory_share=0.1).id == plain.id


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_round_trip_through_json(mode: str, cache: str, distribution: str) -> None:
    policy = MeasurementPolicy(mode, cache, distribution, 4096, True, 0.25)
    back = MeasurementPolicy.from_dict(json.loads(json.dumps(policy.to_dict())))
    assert back == policy
    assert back.id.startswith(f"{mode}-{cache}-{distribution}-")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "lazy"),
        ("mode", "Eager"),
        ("mode", None),
        ("cache", "hot"),
        ("cache", True),
        ("distribution", "zeros"),
        ("distribution", 0),
        ("max_workspace_bytes", -1),
        ("max_workspace_bytes", 1.0),
        ("max_workspace_bytes", True),
        ("max_workspace_bytes", "1"),
        ("deterministic_only", 1),
        ("deterministic_only", None),
        ("deterministic_only", "yes"),
        ("memory_share", 0),
        ("memory_share", 0.0),
        ("memory_share", -0.1),
        ("memory_share", 0.91),
        ("memory_share", True),
        ("memory_share", float("nan")),
        ("memory_share", "half"),
        ("memory_share", None),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidProblem, match=field) as caught:
        MeasurementPolicy.from_dict({field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_workspace_bytes", 0),
        ("max_workspace_bytes", None),
        ("memory_share", 0.9),
        ("memory_share", 1e-3),
    ],
)
def test_the_edges_are_allowed(field: str, value: Any) -> None:
    assert getattr(MeasurementPolicy.from_dict({field: value}), field) == value


def test_an_unknown_field_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidProblem, match=r"unknown policy field 'chache'.*cache.*mode") as caught:
        MeasurementPolicy.from_dict({"chache": "cold"})
    assert caught.value.field == "chache"


# ---- the mode follows the device -----------------------------------------------------------------


def test_every_vendor_has_a_default_mode_and_it_is_its_backends_first() -> None:
    assert tuple(DEFAULT_MODES) == VENDORS
    assert set(DEFAULT_MODES.values()) <= set(MODES)
    for name in BACKENDS:
        assert backend(name).traits.modes[0] == DEFAULT_MODES[name]


def test_a_policy_without_a_mode_has_its_vendors() -> None:
    assert MeasurementPolicy.of("cpu") == MeasurementPolicy("eager")
    assert MeasurementPolicy.of("cuda", cache="warm") == MeasurementPolicy("graph", "warm")
    assert MeasurementPolicy.of("cuda", "eager", max_workspace_bytes=0) == MeasurementPolicy(
        "eager", max_workspace_bytes=0
    )
    with pytest.raises(InvalidProblem, match="mode 'lazy' is unknown"):
        MeasurementPolicy.of("cuda", "lazy")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("33554432", 2**25), ("32MiB", 2**25), (" 32 mib ", 2**25), ("32M", 2**25), ("1k", 1024),
        ("7B", 7), ("32MB", 32 * 10**6), ("2GiB", 2**31), ("1T", 2**40), (str(2**63 - 1), 2**63 - 1),
    ],
)  # fmt: skip
def test_bytes_as_people_write_them(text: str, size: int) -> None:
    assert read_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", "1.5M", "32 Mi B", "32Mib/s", "1e6", "1_0", str(2**63), "9999999T"]
)
def test_what_is_no_number_of_bytes_is_refused_by_name(text: str) -> None:
    with pytest.raises(
        InvalidProblem, match=r"^--limit must be bytes such as 33554432 or 32MiB, not"
    ) as caught:
        read_bytes(text, "--limit")
    assert caught.value.field == "--limit"
