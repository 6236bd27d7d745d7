"""Coverage-guided fuzzing of a reader: `python -m benchmarks.fuzz_coverage READER RUNS`; needs
`pip install atheris`.

Every input goes through the same checks as the mistakes of tests.service.formats.mutate. Ends with an error
at the first wrong answer, whose input libFuzzer stores as a crash-* file.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["service.formats"]):
    from service.formats import READERS
    from tests.service.formats.mutate import answers


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    name, runs = sys.argv[1], int(sys.argv[2])
    corpus = Path(tempfile.mkdtemp(prefix="gemmtune-fuzz-"))
    (corpus / "example").write_text(READERS[name].example)
    options = [f"-runs={runs}", "-max_len=8192", "-timeout=20", "-print_final_stats=1", str(corpus)]
    atheris.Setup([sys.argv[0], *options], lambda data: answers(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
