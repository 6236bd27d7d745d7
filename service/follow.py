"""Tunes through a service: submits, follows the events, and collects results in the form of a local run's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backends.counted import counted
from backends.problem import GemmProblem
from backends.wire import problem_from_wire, problem_to_wire
from service.progress import Remaining
from service.remote import Remote
from service.report import problem_text
from tuners.decide import Verdict
from tuners.session_store import Result


def submit(remote: Remote, items: Sequence[tuple[GemmProblem, int]], options: Mapping[str, Any]) -> Any:
    """Submits the problems with their call counts; returns the service's answer."""
    problems = [{**problem_to_wire(problem), "count": count} for problem, count in items]
    return remote.post("/v1/tunings", {"problems": problems, **options})


def follow(remote: Remote, created: Mapping[str, Any], say: Callable[[str], None]) -> list[Result]:
    """Reports each job through `say` when it ends; returns every job's result once all have ended."""
    names = {job["id"]: job for job in _jobs(remote, created["id"])}
    done, remaining = created.get("known", 0), Remaining()
    if done:
        say(f"{done} of {counted(created['total'], 'problem is', 'problems are')} known already")
    for event in remote.events(created["id"]):
        content = event["content"]
        if event["kind"] == "finished":
            done += 1
            remaining.measured()
            job = names[content["job_id"]]
            name = problem_text(problem_from_wire(job["problem"]))
            left = remaining.text(created["total"] - done)
            say(f"[{done}/{created['total']}] {name}: {_said(content)}{left}")
    return [_result(job) for job in _jobs(remote, created["id"])]


def _jobs(remote: Remote, tuning_id: str) -> list[dict[str, Any]]:
    return list(remote.pages(f"/v1/tunings/{tuning_id}", "jobs", "jobs_cursor"))


def _said(content: Mapping[str, Any]) -> str:
    verdict = content.get("verdict")
    if verdict is None:
        return f"no verdict: {content['error']}"
    return f"{verdict['judgement']} {verdict['speedup']['mid']:.2f}x"


def _result(job: Mapping[str, Any]) -> Result:
    verdict = None if job["verdict"] is None else Verdict.from_dict(job["verdict"])
    return Result(
        problem_from_wire(job["problem"]),
        verdict,
        job["error"],
        job["roofline_share"],
        job["binds"],
        {"search_ended": job["search_ended"]} if job["search_ended"] else {},
        notes=tuple(job["notes"]),
    )
