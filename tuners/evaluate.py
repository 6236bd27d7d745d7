"""Verifies, screens, samples and proves one candidate on the open device.

Runs in the device process; device_calls.py turns a candidate's exceptions into its outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import Any

from backends.errors import ContextLost, DeviceError, IllegalSolution, StorageError
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.protocol import CompiledKernel, Family, Kernel, NamedKernel
from backends.solution import Solution
from tuners.baselines import TWIN
from tuners.device_process import Binaries, DeviceProcess
from tuners.inputs import Case, applicable, cases
from tuners.packed import prepacked

#: Up to this many checks are kept laid out for the next candidates, as in a screening. A proof has more
#: checks and keeps none.
SCREEN_CHECKS = 12
NOT_REPEATABLE = "two runs on the same input gave different bits; the policy wants deterministic solutions"


def verify(
    process: DeviceProcess, solution: Solution, binaries: Binaries, checks: Sequence[Case]
) -> dict[str, Any]:
    """Runs the checks that are legal for the solution, and returns the evidence, with "wrong" if one failed.
    A fallback check runs if the one that it replaces is not legal. If one of the task's defaults fails a
    check of a twin problem, the evidence has that failure as TWIN, and the other checks run."""
    worst: dict[str, Any] = {"checks": 0, "exact_checks": 0, "beta_checks": 0, "error_over_bound": 0.0}
    traits = process.device.traits
    family, findings, ran = process.families[solution.family], {}, set()
    default = solution.id in process.task.defaults

    def runs(case: Case) -> bool:
        kernel = legal(process, family, case.problem, solution, binaries)
        if kernel is None:
            return False
        keep, exact = len(checks) <= SCREEN_CHECKS, case.name == "exact"
        # A second run detects state left behind by the first.
        twice = traits.repeats_exact if exact else traits.repeats_others_in_screening or not keep
        try:
            findings[case] = process.verifier.check(kernel, case, keep, runs=2 if twice else 1), kernel
        except IllegalSolution:  # a library may refuse only at its launch
            return False
        except (ContextLost, DeviceError, StorageError):
            raise  # nothing more can be measured in this process
        except Exception as error:  # whatever a library raises
            if exact or not default:
                raise
            worst.setdefault(TWIN, {**_where(case), "wrong": f"{type(error).__name__}: {error}"})
            return False
        return True

    for case in applicable(checks, runs):
        (finding, kernel), exact = findings.pop(case), case.name == "exact"
        if finding.wrong:
            failure = {"wrong": finding.wrong, **_where(case), **finding.to_dict()}
            if exact or not default:
                return failure
            worst.setdefault(TWIN, failure)
            continue
        ran.add(case)
        worst["checks"] += 1
        worst["exact_checks"] += exact
        worst["beta_checks"] += case.problem.beta != "zero"
        worst["error_over_bound"] = max(worst["error_over_bound"], finding.error_over_bound)
        if finding.repeatable is not None:
            worst["repeatable"] = worst.get("repeatable", True) and finding.repeatable
        if exact:
            worst |= {"relative_error": finding.relative_error, "coverage": finding.coverage}
        if kernel.partial_sums > 1:
            worst["partial_sums"] = kernel.partial_sums
    if not worst["exact_checks"] and any(case.name == "exact" for case in checks):
        raise IllegalSolution(f"it does not run {process.task.problem.slug}")
    worst["cases"] = sorted({case.name for case in ran})
    return worst


def _where(case: Case) -> dict[str, Any]:
    return {
        "case": case.name,
        "problem": case.problem.slug,
        "seed": case.seed,
        "distribution": case.distribution,
    }


def legal(
    process: DeviceProcess, family: Family, problem: GemmProblem, solution: Solution, binaries: Binaries
) -> Kernel | None:
    """The candidate loaded for a problem; None if it is illegal there."""
    if not family.supports(problem) or family.illegal(problem, solution, process.device.environment):
        return None
    try:
        return process.load(problem, solution, binaries)
    except IllegalSolution:
        return None


def screen(
    process: DeviceProcess, solution: Solution, binaries: Binaries, best: float | None, twins: bool = True
) -> Outcome:
    """Verifies a candidate on one seed, then times it until it has enough samples or is shown to be slower
    than `best` (seconds). Without `twins` only the exact problem is checked. Raises LaunchError,
    IllegalSolution, DeviceMemoryExceeded."""
    task = process.task
    limit = task.policy.max_workspace_bytes
    kernel = process.load(task.problem, solution, binaries)
    solution = replace(solution, workspace_bytes=kernel.workspace_bytes)
    if limit is not None and kernel.workspace_bytes > limit:
        rule = f"workspace of {kernel.workspace_bytes} bytes is over the policy's {limit}"
        return Outcome(solution, Phase.SCREEN, Status.ILLEGAL, (), {"rule": rule})
    checks = [case for case in process.screening if twins or case.name == "exact"]
    evidence = verify(process, solution, binaries, checks)
    if "wrong" in evidence:
        return Outcome(solution, Phase.SCREEN, Status.WRONG_RESULT, (), evidence)
    if evidence.get("repeatable") is False:
        solution = replace(solution, deterministic=False)
        if task.policy.deterministic_only:
            return Outcome(solution, Phase.SCREEN, Status.ILLEGAL, (), evidence | {"rule": NOT_REPEATABLE})
    if isinstance(kernel, CompiledKernel):
        evidence["resources"] = dict(kernel.resources())
    if isinstance(kernel, NamedKernel) and (names := kernel.names()):
        evidence["names"] = dict(names)
    timer = process.timer(solution, binaries)
    if prepacked(kernel) is not None:
        evidence |= timer.packing()
    clean: list[float] = []
    disturbed: list[float] = []
    options, samples = task.options.screening, process.device.traits.screening_samples
    noise = process.noise
    if process.device.traits.own_clock:  # no warm-up: the candidate ran a moment ago
        sized = timer.size(warm=False)
        far = max(options.prune_sized * best, options.host_bound_seconds) if best is not None else inf
        if sized.seconds > far and not sized.disturbed:
            sized = timer.size(warm=False)  # once more, so that one outlier cannot drop the best candidate
        if sized.seconds > far and not sized.disturbed:
            evidence |= {"disturbed": 0, "best_seconds": best, "sized_only": True}
            return Outcome(solution, Phase.SCREEN, Status.PRUNED, (sized.seconds,), evidence)
    for _ in range(options.max_samples):
        taken = timer.sample(warm=not clean and not disturbed, screening=True)
        (disturbed if taken.disturbed else clean).append(taken.seconds)
        if taken.disturbed:
            evidence["disturbance"] = taken.disturbed
        if noise.slower(clean, best):
            evidence |= {"disturbed": len(disturbed), "best_seconds": best}
            evidence["slower_by"] = noise.factor(len(clean))
            return Outcome(solution, Phase.SCREEN, Status.PRUNED, tuple(clean), evidence)
        long = sum(clean) > options.long_seconds and len(clean) >= options.min_samples
        if long or noise.enough(clean) or len(disturbed) > 2 * samples:
            break
    noise.add(clean)
    evidence["disturbed"] = len(disturbed)
    if len(clean) >= options.min_samples:
        return Outcome(solution, Phase.SCREEN, Status.OK, tuple(clean), evidence)
    return Outcome(solution, Phase.SCREEN, Status.UNSTABLE, (*clean, *disturbed), evidence)


def sample(process: DeviceProcess, solution: Solution, binaries: Binaries, again: bool) -> Outcome:
    """Takes one sample for a race; with `again`, a disturbed one is repeated. If all tries were disturbed,
    the outcome is unstable, with their median. Raises LaunchError."""
    timer = process.timer(solution, binaries)
    seen: list[float] = []
    for _ in range(process.task.options.race.sample_tries if again else 1):
        taken = timer.sample()
        if not taken.disturbed:
            return Outcome(solution, Phase.FINAL, Status.OK, (taken.seconds,), {"launches": taken.launches})
        seen.append(taken.seconds)
    evidence = {"disturbance": taken.disturbed, "launches": taken.launches}
    return Outcome(solution, Phase.FINAL, Status.UNSTABLE, (median(seen),), evidence)


def prove(
    process: DeviceProcess, solution: Solution, binaries: Binaries, seeds: int, twins: bool = True
) -> Outcome:
    """Verifies a winner on `seeds` seeds of ragged and exact problems (without `twins` of exact ones); the
    evidence includes the device's condition. Raises LaunchError, IllegalSolution, DeviceMemoryExceeded."""
    task = process.task
    condition = dict(process.device.condition())
    exact_seeds = process.device.traits.exact_seeds
    checks = cases(task.problem, seeds, task.seed + 1, exact_seeds)
    wanted = [case for case in checks if twins or case.name == "exact"]
    evidence = verify(process, solution, binaries, wanted)
    evidence |= {"condition": condition} if condition else {}
    if evidence.get("repeatable") is False:
        solution = replace(solution, deterministic=False)
        if task.policy.deterministic_only:
            return Outcome(solution, Phase.PROOF, Status.ILLEGAL, (), evidence | {"rule": NOT_REPEATABLE})
    status = Status.WRONG_RESULT if "wrong" in evidence else Status.OK
    if status is Status.OK:
        evidence |= process.timer(solution, binaries).packing(again=True)
    return Outcome(solution, Phase.PROOF, status, (), {"seeds": seeds, **evidence})
