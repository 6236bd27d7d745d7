"""docs/formats.md, made from the registries: `python -m service.formats.page docs/formats.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

from service.formats import READERS, WRITERS, Format, Writer

_HEAD = """\
# Files in, files out

<!-- Made by `python -m service.formats.page docs/formats.md`; edit service/formats/ instead. -->

`gemmtune import FILE` (or `POST /v1/imports/{format}`) reads the problems of a file, and what it claims;
`gemmtune export FORMAT` (or `GET /v1/exports/{format}`) writes the best known rows of a device class as the
file that a framework or library loads. Without a named format, the format is detected.

**Reading.** A file is streamed. A line that cannot be read is reported by its number with the reason, and
the rest is read; nothing is guessed where a guess could make it another problem. How often a problem was
called becomes its weight. A tuned file of another tool also says which solution is fastest: that is a
*claim*. It is kept apart from what was measured, served and exported only where `imported` asks for it, and
it is a *seed*: the next tuning of its problem on that device class tries it early, and verifies and races
it like any other candidate.

**Writing.** A row is written where a solution won on this very device class under the library build that
the target has. Where the file cannot name the winner, it gets the best solution that it can name, if that one
won against the default too: a tuning judges the best of each
[export target](decisions/0015-export-targets.md). The export reports the geometric mean of the rows that it
wrote, and of all problems, without and with a [bundle](http.md#bundles) of our own kernels. Rows that would
mislead are omitted; the export reports their number by reason: a TIE or a LOSS (the target's default is as
good), a solution that the target cannot name, another build, a row that the target cannot tell from another
one (the report names the one that stands). An export that makes no sense as asked is refused.

`json`, `jsonl` and `csv` have the call count of each problem, as imported files and tunings counted it.
`gemmtune export measurements` writes every stored outcome of every candidate instead: [data](data.md).

| format | read | written | what |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    names = dict.fromkeys((*READERS, *WRITERS))
    rows = []
    for name in names:
        shown = (READERS.get(name) or WRITERS[name]).description.replace("|", "\\|")
        read, written = ("yes" if name in registry else "" for registry in (READERS, WRITERS))
        rows.append(f"| [`{name}`](#{name}) | {read} | {written} | {shown} |\n")
    texts: dict[str, str] = {}
    return _HEAD + "".join(rows) + "".join(_section(name, texts) for name in names)


def _section(name: str, texts: dict[str, str]) -> str:
    reader, writer = READERS.get(name), WRITERS.get(name)
    parts = [f"\n## {name}\n\n{(reader or WRITERS[name]).description}.\n"]
    if writer is not None and writer.targets:
        forms = (form.replace("<", "\\<") for form in writer.targets)
        parts.append("\nTargets:\n\n" + "".join(f"* {form}\n" for form in forms))
    text = _text(reader if reader is not None else WRITERS[name])
    before = next((other for other, known in texts.items() if known == text), None)
    texts[name] = text
    parts.append(f"\n{text}" if before is None else f"\nSee [{before}](#{before}).\n")
    examples: Mapping[str, Any] = {"Read": reader, "Written": writer}
    shown = set()
    for title, fmt in examples.items():
        if fmt is not None and fmt.example not in shown:
            shown.add(fmt.example)
            parts.append(f"\n{title}:\n\n{_indented(fmt.example)}")
    return "".join(parts)


def _text(fmt: Format | Writer) -> str:
    """The docstring of the format's module."""
    module = inspect.getmodule(type(fmt))
    text = inspect.getdoc(module) or ""
    return dedent(text).strip() + "\n"


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.rstrip("\n").split("\n"))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
