"""Turns request bodies into the library's values; reports every fault at once, with its location."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backends import registry
from backends.environment import DeviceClass
from backends.errors import InvalidProblem, UnknownDevice
from backends.problem import GemmProblem
from backends.wire import problem_from_wire
from db import queries
from service import errors, schemas
from service.deps import Service, pointer
from service.settings import Settings
from tuners.budget import Search
from tuners.effort import effort_of
from tuners.measure import working_bytes
from tuners.policy import MeasurementPolicy
from tuners.strategies import STRATEGIES
from tuners.tuning_settings import TuningSettings


def problems(
    body: Any, limit: int, counted: bool, faults: list[errors.Part]
) -> list[tuple[GemmProblem, int]]:
    """Each of the body's "problems" with its count. Their faults are added to `faults`, so that they are
    reported together with those of the rest of the body."""
    values = body.get("problems") if isinstance(body, Mapping) else None
    if not isinstance(values, list):
        return []
    if len(values) > limit:
        faults.append(
            {
                "pointer": "/problems",
                "detail": f"at most {limit} problems in one request (GEMMTUNE_MAX_PROBLEMS), "
                f"not {len(values)}",
            }
        )
        return []
    out: list[tuple[GemmProblem, int]] = []
    for index, value in enumerate(values):
        try:
            count = 1
            if counted and isinstance(value, Mapping) and "count" in value:
                value = dict(value)  # noqa: PLW2901
                count = _count(value.pop("count"))
            out.append((problem_from_wire(value), count))
        except InvalidProblem as error:
            where = pointer("problems", index, *([error.field] if error.field else []))
            faults.append({"pointer": where, "detail": str(error)})
    return out


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= schemas.MAX_COUNT:
        raise InvalidProblem(
            f"count must be an integer between 1 and {schemas.MAX_COUNT}, not {value!r}", "count"
        )
    return value


def merged(items: Sequence[tuple[GemmProblem, int]]) -> list[tuple[GemmProblem, int]]:
    """Equal problems once, their counts added. Raises 422 for a sum over MAX_COUNT."""
    counts: dict[GemmProblem, int] = {}
    for index, (problem, count) in enumerate(items):
        counts[problem] = counts.get(problem, 0) + count
        if counts[problem] > schemas.MAX_COUNT:
            raise errors.bad_body(
                pointer("problems", index, "count"),
                f"the counts of equal problems add up to more than {schemas.MAX_COUNT}",
            )
    return list(counts.items())


def device_class(service: Service, selector: str) -> DeviceClass:
    """The class of a selector in a body; an unknown one is 422, like every other bad field."""
    try:
        return service.read(service.device_class, selector)
    except UnknownDevice as error:
        raise errors.bad_body("/device", errors.unknown_device(error)) from None


def settings_of(request: schemas.TuningOptions, settings: Settings, device: DeviceClass) -> TuningSettings:
    """The settings for every problem, with the device's default mode if none is given. Raises 422 for a mode
    or family that the device's backend does not have."""
    asked, margin = request.budget, request.rule.margin
    effort = effort_of(asked.effort)
    policy = MeasurementPolicy.of(device.vendor, **request.policy.model_dump())
    asked_search, families = request.search, request.search.families
    try:
        STRATEGIES[asked_search.strategy].options.of(asked_search.options)
    except InvalidProblem as error:
        raise errors.bad_body("/search/options", str(error)) from None
    search = Search(
        asked_search.strategy, asked_search.seed, None if families is None else tuple(families),
        asked_search.options,
    )  # fmt: skip
    _check_offered(device, policy, search)
    return TuningSettings(
        policy,
        effort.budget(
            settings.seconds_per_problem,
            asked.seconds_per_problem,
            asked.candidates,
            asked.stop_at_roofline,
            asked.stop_at_regret,
        ),
        search,
        effort.rule(settings.margin if margin is None else margin),
    )


def check_sizes(
    service: Service, device: DeviceClass, policy: MeasurementPolicy, items: Sequence[tuple[GemmProblem, int]]
) -> None:
    """Raises 422 for problems that need more memory than the class's largest device may give them. `items`
    are in the order of the body."""
    memory = service.read(queries.largest_memory, str(device))
    if memory is None:
        return
    known = device.vendor in registry.BACKENDS
    on_device = registry.backend(device.vendor).traits.device_reference if known else True
    allowed = policy.memory_share * memory
    faults = []
    for index, (problem, _) in enumerate(items):
        needed = working_bytes(problem, on_device)
        if needed > allowed:
            faults.append(
                {
                    "pointer": pointer("problems", index),
                    "detail": f"needs about {needed / 2**20:,.0f} MiB to run and verify; the largest device "
                    f"of {device} has {memory / 2**20:,.0f} MiB, of which {policy.memory_share:.0%} may be "
                    f"used ({allowed / 2**20:,.0f} MiB)",
                }
            )
    if faults:
        raise errors.invalid(faults, "A problem is too large for every device of the class")


def _check_offered(device: DeviceClass, policy: MeasurementPolicy, search: Search) -> None:
    if device.vendor not in registry.BACKENDS:
        return  # only its workers can check
    backend = registry.backend(device.vendor)
    if policy.mode not in backend.traits.modes:
        raise errors.bad_body(
            "/policy/mode",
            f"{device.vendor} times in mode {', '.join(backend.traits.modes)} only, not {policy.mode}",
        )
    known = tuple(backend.families())
    faults = [
        {
            "pointer": pointer("search", "families", index),
            "detail": f"family {name!r} is unknown; known: {', '.join(known)}",
        }
        for index, name in enumerate(search.families or ())
        if name not in known
    ]
    if faults:
        raise errors.invalid(faults)
