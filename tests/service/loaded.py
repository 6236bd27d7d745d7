"""A program: the command line in processes that are forked from this one, which has loaded it: of many short
commands starting is all that takes time.

Each line of standard input is [arguments, environment]; one line comes back for each: [exit code, standard
output, standard error].
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

from service import cli

ROOT = Path(__file__).parent.parent.parent


class Loaded:
    """The program, as its users see it, in an environment of theirs."""

    def __init__(self, process: subprocess.Popen[str], environment: Mapping[str, str]) -> None:
        self._process = process
        self._environment = dict(environment)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """A command's exit code and what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([arguments, self._environment]) + "\n")
        self._process.stdin.flush()
        code, out, err = json.loads(self._process.stdout.readline())
        return code, out, err


def loaded(environment: Mapping[str, str]) -> Loaded:
    """The program in this environment."""
    return Loaded(_process(), environment)


@cache
def _process() -> subprocess.Popen[str]:
    """One for all tests of this process."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    atexit.register(process.communicate)  # closes its input, and waits for its end
    return process


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
                arguments, environment = json.loads(line)
                os.environ.clear()
                os.environ.update(environment)
                sys.argv[1:] = arguments
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
