"""What the TunableOp files of a tuned database carry to torch: their rows and geometric mean speed-ups.

    gemmtune tune LISTS --device cuda --family cublaslt --seconds 1.5
    python -m benchmarks.export_gain sqlite:///FILE

A file is written for each torch, with the cuBLASLt of the stored environments. No device is needed: the figures
are those of stored verdicts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from backends.environment import Environment, resolve
from benchmarks.report import RESULTS, write
from db import queries
from db.engine import open_engine, reading
from service.exports import Selection, open_export
from tuners.policy import MeasurementPolicy

#: Target -> the version of torch that the file's header names.
TORCHES = {"torch-2.14+cuda": "2.14.0", "torch-2.15+cuda": "2.15.0"}


def main() -> None:
    """Runs the benchmark. Raises SystemExit for a database without an environment of the device."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("database", help="URL of the database")
    parser.add_argument("--device", default="cuda", help="device selector")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result")
    options = parser.parse_args()
    engine = open_engine(options.database)
    with reading(engine) as connection:
        device = resolve(options.device, queries.known_classes(connection))
        policy = MeasurementPolicy.of(device.vendor).id
        rows = queries.best_environments(connection, str(device), policy, 1)
    if not rows:
        raise SystemExit(f"{options.database} has no best row of {device}")
    environment = Environment.from_dict(rows[0]["content"])
    figures = {}
    for target, version in TORCHES.items():
        build = environment.libraries["cublaslt"]
        validators = {"PT_VERSION": version, "CUBLASLT_VERSION": build}
        chosen = Selection(device, policy, target=target, validators=validators)
        figures[target] = open_export(engine, "tunableop", chosen).whole_report().figures()
    what = "gain.geometric_mean: of the rows in the file; all_problems: those left to torch count as 1.0"
    write("export-tunableop", environment, {"what": what, "files": figures}, options.output)


if __name__ == "__main__":
    main()
