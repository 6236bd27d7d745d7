"""Claims of imported files' results rows, stored apart from measurements and served only on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine

from backends.canonical import slug
from backends.environment import DeviceClass, Environment
from backends.solution import Solution
from db import models
from db.engine import writing
from db.values import (
    insert_new,
    put_device_class,
    put_environment,
    put_policy,
    put_solutions,
    storable,
)
from service.formats import READERS, Imported, ImportedClaim
from service.formats.core.base import NamesDevice
from service.formats.core.row_text import problem_text
from service.kept import LONGEST_KEY, Kept, environment_fits, parts, solution_fits

#: Library family -> the vendor of the devices that run it, as formats declare it.
_VENDORS = {name: vendor for one in READERS.values() for name, vendor in one.declares.families.items()}


def put_claims(engine: Engine, number: int, read: Imported, device_class: DeviceClass | None) -> Kept:
    """Stores the file's claims under provenance `number`. `device_class` is the device of rows that do not
    name one."""
    kept = Kept()
    fmt = READERS[read.format]
    contradiction = None
    if device_class is not None and isinstance(fmt, NamesDevice):
        contradiction = fmt.contradiction(read.header, device_class)
    for part in parts(read.claims):
        rows: list[dict[str, Any]] = []
        solutions: dict[str, Solution] = {}
        environments: dict[int, Environment] = {}
        policies: dict[str, Mapping[str, Any]] = {}
        classes: set[DeviceClass] = set()
        for item in part:
            claim = item.claim
            fault = _claim_fault(item, device_class, fmt.declares.vendor) or contradiction
            if fault is not None:
                kept.skip(1, fault)
                continue
            if claim.row is not None:
                environments[id(claim.row.environment)] = claim.row.environment
                policies[claim.row.policy.id] = claim.row.policy.to_dict()
            elif claim.device is not None:
                classes.add(claim.device)
            if claim.solution is not None:
                solutions[claim.solution.id] = claim.solution
            rows.append(_claim_row(number, item, device_class))
        with writing(engine) as connection:
            for found in sorted(classes):
                put_device_class(connection, found)
            for environment in environments.values():
                put_environment(connection, environment)
            for policy_id, content in policies.items():
                put_policy(connection, policy_id, content)
            # A file's statement on determinism stays with its claim: the solution's own is measured.
            put_solutions(connection, (replace(s, deterministic=None) for s in solutions.values()))
            made = len(insert_new(connection, models.Claim, rows, "number"))
        kept.stored += made
        kept.known += len(rows) - made
    return kept


def _claim_fault(item: ImportedClaim, device_class: DeviceClass | None, vendor: str | None) -> str | None:
    claim = item.claim
    named = claim.found_on
    device = named or device_class
    if device is None:
        return "results need the device they were found on: name the device, as vendor:arch:product:units"
    if device_class is not None and device != device_class:
        return f"the file says {device}, not {device_class}"
    if vendor not in (None, device.vendor):
        return f"the file is of {vendor} devices, not {device}"
    if claim.arch not in ("", device.arch):
        return f"the file says {claim.arch}, not {device}"
    if claim.units not in (0, device.units):
        return f"the file says {claim.units} compute units, not {device}"
    if claim.product and slug(claim.product.replace("_", " ")) != slug(device.product.replace("_", " ")):
        return f"the file says {claim.product[:100]}, not {device}"
    if claim.solution is not None:
        runs_on = _VENDORS.get(claim.solution.family, device.vendor)
        if runs_on != device.vendor:
            return f"the file says {runs_on}, not {device}: its solutions are of {claim.solution.family}"
    if len(item.key) > LONGEST_KEY:
        return f"line {item.line}: its key is longer than {LONGEST_KEY} characters"
    if claim.row is not None and not environment_fits(claim.row.environment):
        return f"line {item.line}: its environment cannot be stored"
    if claim.solution is not None and not solution_fits(claim.solution):
        return f"line {item.line}: its solution cannot be stored"
    return None


def _claim_row(number: int, item: ImportedClaim, device_class: DeviceClass | None) -> dict[str, Any]:
    claim, row = item.claim, item.claim.row
    content = None if claim.said is None else storable(dict(claim.said))
    if row is not None:
        names = ("judgement", "baseline_name", "baseline_seconds", "speedup", "rounds", "session",
                 "decided_at", "provenance", "source")  # fmt: skip
        content = storable({name: getattr(row, name) for name in names})
        content["environment_id"] = row.environment.id
        content["baseline"] = None if row.baseline is None else row.baseline.to_dict()
        content["targets"] = {
            name: {
                "solution": one.solution.id,
                "seconds": one.seconds,
                "baseline_seconds": one.baseline_seconds,
            }
            for name, one in row.targets.items()
        }
    solution = claim.solution
    if solution is not None and (content, solution.workspace_bytes, solution.deterministic) != (
        None,
        0,
        None,
    ):
        properties = {"workspace_bytes": solution.workspace_bytes, "deterministic": solution.deterministic}
        content = {**(content or {}), **properties}
    return {
        "provenance_number": number,
        "problem_id": problem_text(item.problem)[0],
        "device_class_id": str(claim.found_on or device_class),
        "policy_id": claim.policy_id if row is None else row.policy.id,
        "solution_id": None if claim.solution is None else claim.solution.id,
        "seconds": claim.seconds,
        "key": item.key,
        "content": content,
    }
