"""A program: the command line in processes that are forked from this one, which has loaded it: of many short
commands starting is all that takes time.

Each line of standard input is a list of arguments; one line comes back for each: [exit code, standard output,
standard error].
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from service import cli

ROOT = Path(__file__).parent.parent.parent


class Loaded:
    """The program, as its users see it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """A command's exit code and what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        code, out, err = json.loads(self._process.stdout.readline())
        return code, out, err


@contextmanager
def loaded(environment: Mapping[str, str]) -> Iterator[Loaded]:
    """The program in this environment."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
    ) as process:  # fmt: skip
        yield Loaded(process)


def main() -> None:
    """Runs each line's command."""
    for module in {module for module, _ in cli.COMMANDS.values()}:  # a command alone loads no other
        import_module(f"service.commands.{module}")
    gc.freeze()  # what is loaded is not looked through again when a command ends
    for line in sys.stdin:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = os.fork()
            if process == 0:  # it ends as any that is started
                with open(os.devnull, "rb") as nothing:
                    for file, number in ((nothing, 0), (out, 1), (err, 2)):
                        os.dup2(file.fileno(), number)
                sys.argv[1:] = json.loads(line)
                cli.main()
                sys.exit()
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read().decode())
        print(json.dumps([code, *said]), flush=True)


if __name__ == "__main__":
    main()
