"""Tunes problems for a command: on a device of this machine, or through a service."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.environment import DeviceClass
from backends.errors import DeviceLost, InvalidProblem
from backends.registry import FoundDevice, matching_devices
from db.engine import reading
from db.tunings import new_id
from service import follow, imports
from service.audit import FAILED, audited
from service.campaign_plan import plan_campaign
from service.commands.common import err
from service.device_lock import DeviceLock, locks_folder
from service.formats.core.base import Imported
from service.progress import CampaignProgress
from service.remote import Remote
from service.settings import Settings
from service.startup import open_database
from service.store import DirectStore
from tuners.budget import Budget, Search
from tuners.campaign import Campaign, CampaignLimits, Finished, Skipped
from tuners.campaign_shares import REASONS, CampaignShares
from tuners.ceilings import CeilingStore
from tuners.decide import DecisionRule
from tuners.device_client import DeviceClient
from tuners.journal import Journal
from tuners.policy import MeasurementPolicy
from tuners.portfolio import file as portfolios
from tuners.session_store import Result, SessionStore
from tuners.tuning_settings import TuningSettings


@dataclass(frozen=True)
class Asked:
    """What is to be tuned, and how; `options` are the policy's options other than its mode. `device`: None is
    this machine's by the settings, or the one that a service's requests mean. `output`: the
    file that keeps the outcomes in place of the database. `source`: the name of the file of problems, whose
    call counts the database keeps; None for problems of no file. `command`: which one asks, and
    `subject`: about what, if neither about a file nor about one problem; for the audit trail."""

    read: Imported
    device: str | None
    index: int | None
    mode: str | None
    options: dict[str, Any]
    budget: Budget
    search: Search
    rule: DecisionRule
    effort: str
    force: bool
    output: Path | None
    total_seconds: float | None
    max_gflop: float | None
    silent: bool
    campaign_seconds: float | None = None
    source: str | None = None
    command: str = "tune"
    subject: str | None = None

    def policy(self, vendor: str) -> MeasurementPolicy:
        """The policy on a device of this vendor."""
        return MeasurementPolicy.of(vendor, self.mode, **self.options)


@dataclass
class Done:
    """What was tuned; `interrupted` says how to go on, `lost` why the device was lost."""

    where: dict[str, Any]
    policy: MeasurementPolicy
    results: list[Result] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    interrupted: str | None = None
    lost: str | None = None


def tune_here(settings: Settings, asked: Asked) -> Done:
    """Tunes on the first free device of the class. Raises UnknownDevice, AmbiguousDevice, DeviceError,
    StorageError, and ReadError for a portfolio of the settings that cannot be read."""
    if settings.portfolio is not None:  # refused before anything is measured
        portfolios.chosen(settings.portfolio)
    candidates = matching_devices(asked.device or settings.device, asked.index)
    policy = asked.policy(candidates[0].environment.vendor)
    with DeviceLock.first_free(locks_folder(settings), candidates) as lock:
        return _on(lock.device, settings, asked, policy)


def _on(found: FoundDevice, settings: Settings, asked: Asked, policy: MeasurementPolicy) -> Done:
    if asked.output:
        with closing(Journal(asked.output)) as journal:
            return _tuned(found, settings, asked, policy, journal)
    engine = open_database(settings)
    subject = asked.source or asked.subject or asked.read.problems[0].problem.slug
    where = f"device_class={found.environment.device_class}"
    with audited(settings, asked.command, subject, where) as change:
        if asked.source is not None:  # exports and reports weigh problems by their calls
            imports.keep_counts(engine, asked.read, asked.source)
        store = DirectStore(engine, new_id("forced") if asked.force else "")
        done = _tuned(found, settings, asked, policy, store)
        change.detail = f"{where} problems={len(done.results)}"
        if done.lost is not None:
            change.result = FAILED
    return done


def _tuned(
    found: FoundDevice, settings: Settings, asked: Asked, policy: MeasurementPolicy, store: SessionStore
) -> Done:
    ceilings = CeilingStore(settings.cache_dir / "ceilings")
    problems = [item.problem for item in asked.read.problems]
    tuning = TuningSettings(policy, asked.budget, asked.search, asked.rule)
    shares = None
    if asked.campaign_seconds is not None:
        shares = _shares(settings, found, asked, policy, asked.campaign_seconds)
    limits = CampaignLimits(asked.total_seconds, None if asked.max_gflop is None else asked.max_gflop * 1e9)
    done = Done(found.environment.to_dict(), policy)
    with DeviceClient(found, BinaryCache(settings.cache_dir / "kernels")) as runner:
        campaign = Campaign(
            runner, problems, tuning, store,
            ceilings.of(runner.environment, runner.ceilings), limits, shares, settings.portfolio,
        )  # fmt: skip
        previous = signal.signal(signal.SIGINT, lambda *_: campaign.stop())
        try:
            with CampaignProgress(err, len(problems), asked.silent) as bar:
                for event in campaign.run():
                    bar.follow(event)
                    if isinstance(event, Finished):
                        done.results.append(event.result)
                    elif isinstance(event, Skipped):
                        done.skipped.append(event)
        except DeviceLost as error:
            done.lost = str(error)
        finally:
            signal.signal(signal.SIGINT, previous)
    if campaign.stopped:
        done.interrupted = "run the same command again to go on"
    return done


def _shares(
    settings: Settings, found: FoundDevice, asked: Asked, policy: MeasurementPolicy, seconds: float
) -> CampaignShares:
    """How the campaign's seconds are shared among the problems that --max-gflop lets through."""
    items = [
        (item.problem, item.count)
        for item in asked.read.problems
        if asked.max_gflop is None or item.problem.flops <= asked.max_gflop * 1e9
    ]
    here = found.environment
    with reading(open_database(settings)) as connection:
        return plan_campaign(connection, str(here.device_class), policy.id, items, seconds, asked.force, here)


def tune_there(server: str, asked: Asked) -> Done:
    """Tunes through a service. Raises ServiceError, and InvalidProblem for options that are for this
    machine."""
    if asked.output is not None or asked.total_seconds is not None:
        raise InvalidProblem("--output and --total-seconds are for tuning here, not with --server")
    if asked.index is not None:
        raise InvalidProblem("--index is for tuning here: a service's workers share a device class's jobs")
    # If no mode was given, the service chooses it: it knows the device.
    policy = asked.policy("cpu")
    chosen = {name: v for name, v in policy.to_dict().items() if name != "mode" or asked.mode is not None}
    done, kept = Done({}, policy), []
    for index, item in enumerate(asked.read.problems):
        if asked.max_gflop is not None and item.problem.flops > asked.max_gflop * 1e9:
            reason = f"over the limit of {asked.max_gflop:g} GFLOP"
            done.skipped.append(Skipped(index, item.problem, reason))
        else:
            kept.append((item.problem, item.count))
    if not kept:
        raise InvalidProblem(f"no problem is left to tune: {done.skipped[0].reason}")
    if asked.campaign_seconds is None:
        seconds = {"seconds_per_problem": asked.budget.seconds}
    else:
        seconds = {"campaign_seconds": asked.campaign_seconds}
    options = {
        "device": asked.device, "policy": chosen, "rule": {"margin": asked.rule.margin},
        "budget": {
            **seconds, "candidates": asked.budget.candidates,
            "effort": asked.effort, "stop_at_roofline": asked.budget.stop_at_roofline,
            "stop_at_regret": asked.budget.stop_at_regret,
        },
        "force": asked.force,
        "search": {**asked.search.to_dict(), "families": asked.search.families},
    }  # fmt: skip

    def say(text: str) -> None:
        if not asked.silent:
            err.print(text, markup=False, highlight=False)

    with Remote(server) as remote:
        created = follow.submit(remote, kept, options)
        done.policy = asked.policy(DeviceClass.parse(created["device_class"]).vendor)
        done.where = {"device_class": created["device_class"], "tuning_id": created["id"]}
        if asked.campaign_seconds is not None:
            done.skipped += _left_out(created["left_out"], asked.read)
        try:
            done.results = follow.follow(remote, created, say)
        except KeyboardInterrupt:
            done.interrupted = f"the tuning goes on: {server}{created['links']['self']}"
    return done


def _left_out(left_out: Mapping[str, Any], read: Imported) -> list[Skipped]:
    """The problems that a service's campaign leaves out, from its answer."""
    reasons = {name: reason for part, reason in REASONS.items() for name in left_out[part]["problem_ids"]}
    return [
        Skipped(index, item.problem, reasons[item.problem.id])
        for index, item in enumerate(read.problems)
        if item.problem.id in reasons
    ]
