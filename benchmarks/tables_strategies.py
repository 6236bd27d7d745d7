"""The section of docs/performance.md about search strategies: their regret on recorded tables, as a table and as
a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuners.budget import Search

Document = Mapping[str, Any]

#: The picture beside docs/performance.md.
PICTURE = "strategies.svg"
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 560, 300, 56, 16, 110, 36
_COLOURS = ("#0b6e99", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#718096")


def section(results: Path) -> str:
    """The section: the tables that were searched, and each strategy's regret after some candidates."""
    document = read(results)
    steps = _steps(document)
    lines = [
        "## Search strategies\n",
        "Replayed searches of recorded tables: the candidates' own samples, half of which no search sees. Mean and 95th "
        "percentile of the regret against the table's fastest; history and portfolio have no problem of the same layer.\n",
        *(
            f"* `benchmarks/recorded/{name}`: {one['problems']} problems, {one['rows']:,} rows, "
            f"{one['measured_at'][:10]}, commit {one['commit'][:12]}; choosing by all samples of the first half has a "
            f"mean regret of {one['noise']:.2%}"
            for name, one in document["tables"].items()
        ),
        *_left_out(document),
        "",
        f"![Mean regret by candidates timed]({PICTURE})\n",
        f"| strategy | {' | '.join(f'{step} candidates' for step in steps)} | share of a table timed |",
        f"|---|{'---|' * (len(steps) + 1)}",
    ]
    for name, found in _by_regret(document):
        cells = [f"{at['mean_regret']:.2%} ({at['p95_regret']:.1%})" for at in found["at"].values()]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {found['share_timed']:.0%} |")
    device = document["environment"]["product"]
    told = (
        f"`{document['command']}`, {document['measured_at'][:10]}, commit {document['commit'][:12]}, {device}"
    )
    return "\n".join([*lines, "", *_by_table(document), told, ""])


def _left_out(document: Document) -> list[str]:
    """The recorded tables that were not searched, with their noise; and that it is the reason, where it is more than
    any strategy's regret at the end."""
    most = max(found["mean_regret"] for found in document["strategies"].values())
    return [
        f"* left out: `benchmarks/recorded/{name}`, {one['problems']} problems, {one['rows']:,} rows; choosing by all "
        f"samples of its first half has a mean regret of {one['noise']:.2%}"
        + (
            ", more than that of any strategy below, so it cannot tell them apart"
            if one["noise"] > most
            else ""
        )
        for name, one in document["left_out"].items()
    ]


def _by_table(document: Document) -> list[str]:
    """The default strategy's regret on each table: the same number of candidates is another share of each."""
    steps, name = _steps(document), Search().strategy
    shares = {table: one["strategies"][name]["share_timed"] for table, one in document["tables"].items()}
    least, most = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    lines = [
        f"`{name}`, the default, on each table. {steps[-1]} candidates are {shares[least]:.1%} of `{least}` and "
        f"{shares[most]:.1%} of `{most}`.\n",
        f"| table | problems | rows a problem | {' | '.join(f'{step} candidates' for step in steps)} | "
        f"share timed after {steps[-1]} |",
        f"|---|{'---|' * (len(steps) + 3)}",
    ]
    for table, one in document["tables"].items():
        found = one["strategies"][name]
        cells = [f"{at['mean_regret']:.2%} ({at['p95_regret']:.1%})" for at in found["at"].values()]
        lines.append(
            f"| `{table}` | {one['problems']} | {one['rows'] / one['problems']:,.0f} | {' | '.join(cells)} | "
            f"{found['share_timed']:.1%} |"
        )
    return [*lines, ""]


def hub_section(results: Path) -> str:
    """The part about the spaces of benchmark_hub: regret after some candidates on every GPU."""
    document: Document = json.loads((results / "benchmark-hub.json").read_text())
    gpus: Mapping[str, Document] = document["strategies"]
    steps = _steps({"strategies": gpus["all"]})
    lines = [
        "### On spaces that others measured\n",
        "CLBlast's Xgemm, 4096 x 4096 x 4096 in fp32, from benchmark_hub of the AutoTuning Association: "
        + ", ".join(
            f"{rows:,} configurations ({name.split('.')[0]})" for name, rows in document["rows"].items()
        )
        + ". A search knows the fastest configurations of the other GPUs, and nothing of its own. Mean and 95th "
        "percentile of the regret on all GPUs, and the mean after "
        f"{steps[-1]} candidates on each.\n",
        f"| strategy | {' | '.join(f'{step} candidates' for step in steps)} | "
        f"{' | '.join(name for name in gpus if name != 'all')} |",
        f"|---|{'---|' * (len(steps) + len(gpus) - 1)}",
    ]
    for name, found in _by_regret({"strategies": gpus["all"]}):
        cells = [f"{at['mean_regret']:.2%} ({at['p95_regret']:.1%})" for at in found["at"].values()]
        cells += [f"{by[name]['mean_regret']:.2%}" for gpu, by in gpus.items() if gpu != "all"]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    told = f"`{document['command']}`, {document['measured_at'][:10]}, commit {document['commit'][:12]}"
    return "\n".join([*lines, "", told, ""])


def picture(results: Path) -> str:
    """The mean regrets as lines over the number of candidates timed, as SVG."""
    document = read(results)
    steps, strategies = _steps(document), _by_regret(document)
    most: float = max(at["mean_regret"] for _, found in strategies for at in found["at"].values())
    across, up = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(step: int) -> float:
        return _LEFT + across * (step - steps[0]) / (steps[-1] - steps[0])

    def y(regret: float) -> float:
        return _TOP + up * (1 - regret / most)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<path d="M{_LEFT} {_TOP}V{_TOP + up}H{_LEFT + across}" fill="none" stroke="#4a5568"/>',
    ]
    parts += [
        f'<text x="{x(step):.0f}" y="{_TOP + up + 18}" text-anchor="middle">{step}</text>' for step in steps
    ]
    for share in (0.0, 0.5, 1.0):
        at = y(share * most)
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.0f}" text-anchor="end">{share * most:.1%}</text>')
    middle = _LEFT + across / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">candidates timed</text>')
    for (_, found), colour in zip(strategies, _COLOURS, strict=False):
        points = [(x(int(step)), y(at["mean_regret"])) for step, at in found["at"].items()]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for place, ((name, _), colour) in enumerate(zip(strategies, _COLOURS, strict=False)):
        at = _TOP + 14 + 18 * place
        parts.append(f'<text x="{_LEFT + across + 10}" y="{at}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def read(results: Path) -> Document:
    """The result of benchmarks/strategies.py."""
    document: Document = json.loads((results / "strategies.json").read_text())
    return document


def _steps(document: Document) -> list[int]:
    return [int(step) for step in next(iter(document["strategies"].values()))["at"]]


def _by_regret(document: Document) -> Sequence[tuple[str, Document]]:
    return sorted(document["strategies"].items(), key=lambda one: (one[1]["mean_regret"], one[0]))
