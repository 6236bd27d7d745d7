"""Commands that run the service: serve, worker, demo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from backends.registry import matching_devices
from service.commands.common import Device, Index, OwnDevice, input_path, out
from service.device_lock import DeviceLock, locks_folder
from service.logs import log_to_stderr
from service.settings import Settings
from service.startup import open_database


def _check_portfolio(settings: Settings) -> None:
    """Refuses a portfolio of the settings that cannot be read, before a job is taken. Raises ReadError."""
    if settings.portfolio is not None:
        from tuners.portfolio import file  # noqa: PLC0415  (other commands need no portfolio)

        file.chosen(settings.portfolio)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (GEMMTUNE_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one (GEMMTUNE_PORT).")] = None,
    worker: Annotated[bool, typer.Option(help="Also run workers, one for each device.")] = True,
    device: Annotated[
        str | None,
        typer.Option(
            help="The workers' device class (GEMMTUNE_DEVICE), or one device's UUID; also the class that "
            "requests mean which name none."
        ),
    ] = None,
    keys: Annotated[
        bool | None,
        typer.Option(
            help="Whether requests need an API key (GEMMTUNE_KEYS). An address other than loopback needs "
            "keys, or --no-keys."
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Certificate chain (PEM): answer by TLS (GEMMTUNE_TLS_CERTIFICATE).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The certificate's private key (PEM, GEMMTUNE_TLS_KEY).")
    ] = None,
    index: Index = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Run at most so many workers; default: every device of the class."),
    ] = None,
) -> None:
    """Run the HTTP service, and beside it a worker for each device of a class of this machine."""
    from service.serve import Beside  # noqa: PLC0415
    from service.serve import serve as run  # noqa: PLC0415  (a web server is loaded by this command alone)

    settings = Settings()
    given = {
        name: value
        for name, value in (
            ("host", host), ("port", port), ("device", device), ("keys", keys),
            ("tls_certificate", tls_certificate), ("tls_key", tls_key),
        )
        if value is not None
    }  # fmt: skip
    # Only what is set: whether a device is named matters.
    settings = Settings(**{**settings.model_dump(exclude_unset=True), **given})
    _check_portfolio(settings)
    log_to_stderr(settings.log_json)

    def announce(url: str) -> None:
        out.print(f"gemmtune serves {url} (documentation: {url}/docs)", markup=False, highlight=False)
        sys.stdout.flush()

    run(settings, Beside(settings.device, index, workers) if worker else None, announce)


def worker(
    device: OwnDevice = None,
    index: Index = None,
    end_with_parent: Annotated[bool, typer.Option("--end-with-parent", hidden=True)] = False,
) -> None:
    """Run a worker: it owns one device of this machine, the first of its class that no other process uses,
    and measures the jobs of the class."""
    from service import worker_process as process  # noqa: PLC0415  (the job engine)
    from service.worker import Worker  # noqa: PLC0415

    settings = Settings()
    _check_portfolio(settings)
    log_to_stderr(settings.log_json)
    candidates = matching_devices(device or settings.device, index)
    lock = DeviceLock.first_free(locks_folder(settings), candidates)
    process.give_way(lock.device)
    # Beside a server the database exists: if its file is gone, a new one would hide that.
    opened = open_database(settings, make=not end_with_parent)
    made = Worker(settings, opened, lock.device, lock=lock)
    if end_with_parent:
        process.end_with_parent(lambda: process.stop_process(made))
    process.run_worker(made)


def demo(
    file: Annotated[Path, typer.Argument(help="A captured file of problems; - reads standard input.")],
    folder: Annotated[Path, typer.Option(help="Where database, exports and log are kept.")] = Path(".demo"),
    device: Device = None,
    max_gflop: Annotated[float, typer.Option(help="Leave out problems over this many GFLOP.")] = 2.5,
    seconds: Annotated[float | None, typer.Option(help="Measuring budget a problem.")] = None,
) -> None:
    """Go the whole way once: serve, import FILE, tune through HTTP, ask for the best, export, stop."""
    from service.demo import demo as run  # noqa: PLC0415

    settings = Settings()
    budget = settings.seconds_per_problem if seconds is None else seconds
    run(input_path(file), folder, device or settings.device, max_gflop, budget, out)


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    app.command()(serve)
    app.command()(worker)
    app.command()(demo)
