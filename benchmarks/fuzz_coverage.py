"""Coverage-guided fuzzing of a reader; needs `pip install atheris`.

    python -m benchmarks.fuzz_coverage READER RUNS

Every input goes through the same checks as the mistakes of tests.service.formats.mutate. Ends with an error
at the first wrong answer, whose input libFuzzer stores as a crash-* file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reader", help="an import format's name, such as tunableop")
    parser.add_argument("runs", type=int, help="how many inputs are tried")
    given = parser.parse_args()

    import atheris  # noqa: PLC0415

    with atheris.instrument_imports(include=["service.formats"]):  # before anything else imports them
        from service.formats import READERS  # noqa: PLC0415
        from tests.service.formats.mutate import answers  # noqa: PLC0415
    if given.reader not in READERS:
        parser.error(f"no reader is called {given.reader!r}; there are {', '.join(sorted(READERS))}")
    corpus = Path(tempfile.mkdtemp(prefix="gemmtune-fuzz-"))
    (corpus / "example").write_text(READERS[given.reader].example)
    options = [f"-runs={given.runs}", "-max_len=8192", "-timeout=20", "-print_final_stats=1", str(corpus)]
    atheris.Setup([sys.argv[0], *options], lambda data: answers(given.reader, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
