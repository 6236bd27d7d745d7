"""The Dockerfile and the ignore file as data."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"
IGNORE = ROOT / ".dockerignore"
COMPOSE = ROOT / "docker" / "compose.yaml"
CONSTRAINTS = ROOT / "docker" / "constraints.txt"
CUDA_CONSTRAINTS = ROOT / "docker" / "constraints-cuda.txt"
#: registry/folder/name:tag, the tag with a version of two numbers at least: `3`, `latest` move.
EXACT = re.compile(r"^[a-z0-9.-]+(/[a-z0-9._-]+)+:v?\d+(\.\d+)+(-[a-z0-9.-]+)?(@sha256:[0-9a-f]{64})?$")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile with its continued lines as one."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments, of the JSON form or of the shell's."""
        if self.text.startswith("["):
            return [str(word) for word in json.loads(self.text)]
        return shlex.split(self.text)


def instructions(text: str) -> list[Instruction]:
    """Every instruction in order; comments are left out."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    rows = [line.strip() for line in joined.splitlines() if line.strip()]
    return [Instruction(row.split(maxsplit=1)[0].upper(), row.split(maxsplit=1)[1].strip()) for row in rows]


def stages(text: str) -> dict[str, list[Instruction]]:
    """Stage name -> its own instructions, FROM first. What stands before the first FROM has no name."""
    found: dict[str, list[Instruction]] = {"": []}
    name = ""
    for instruction in instructions(text):
        if instruction.name == "FROM":
            name = instruction.words[-1]
            found[name] = []
        found[name].append(instruction)
    return found


def lineage(text: str, target: str) -> list[Instruction]:
    """Every instruction that makes `target`: its ancestors' first."""
    found = stages(text)
    own = found[target]
    parent = own[0].words[0]
    return [*(lineage(text, parent) if parent in found else []), *own]


def copied(text: str) -> set[str]:
    """Every path that comes from the build context."""
    rows = [i.words for i in instructions(text) if i.name == "COPY" and not i.text.startswith("--from")]
    return {source.rstrip("/") for words in rows for source in words[:-1]}


def let_in(text: str) -> set[str]:
    """Every path that the ignore file makes an exception of."""
    return {line[1:].rstrip("/") for line in text.splitlines() if line.startswith("!")}


def base_images(text: str) -> dict[str, str]:
    """The argument of each base image -> the image that it names by default."""
    arguments = [i.text.partition("=") for i in stages(text)[""] if i.name == "ARG"]
    return {name: value for name, _, value in arguments}
