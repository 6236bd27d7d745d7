"""Writes docs/strategies.md: python -m tuners.strategies.document docs/strategies.md"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from tuners.budget import Search
from tuners.strategies import STRATEGIES, Maker
from tuners.strategies.options import table_text

_HEAD = """# Search strategies

A strategy decides which candidate a tuning tries next. Choose one with `--strategy NAME`, and set its
options with `--strategy-option NAME=VALUE`, once for each; over HTTP they are `search.strategy` and
`search.options`. The options that were given are stored with the session.
[extending/strategy.md](extending/strategy.md) shows how to add a strategy.

This page is generated from the strategies' own tables:
`python -m tuners.strategies.document docs/strategies.md`.
"""


def document() -> str:
    """The page: every strategy with its options."""
    return "\n".join([_HEAD, *(_section(name, make) for name, make in STRATEGIES.items())])


def _section(name: str, make: Maker) -> str:
    about = " ".join((inspect.getdoc(make) or "").partition("\n\n")[0].split())
    default = " The default." if name == Search.strategy else ""
    rows = make.options.table()
    return f"## {name}\n\n{about}{default}\n\n{table_text(rows) if rows else 'It has no options.'}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document())
