"""What a model's config.json says of its layers of experts, beside files that name these by their sizes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from backends.errors import ReadError
from service.formats.core.base import ReadOptions
from service.formats.core.json_text import BadJsonError, BrokenError, Document, decode
from service.formats.model.fields import Fields
from service.formats.vllm.files import UnreadError

CONFIG = "config.json"
#: The fields with the experts of a token.
_TOP_K = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token")
#: Bytes of a config.json that are read from a folder.
_MOST = 2**20


def is_config(name: str | None) -> bool:
    """Whether a file's name is a model's description's."""
    return name is not None and re.split(r"[/\\]", name)[-1] == CONFIG


def told_by(document: Document, options: ReadOptions) -> ReadOptions:
    """The options with what a config.json in the stream says, where they do not say it themselves. Raises
    UnreadError, BrokenError."""
    try:
        return with_config(document.value(), options)
    except BrokenError:
        raise
    except (BadJsonError, ReadError) as error:
        raise UnreadError(f"{CONFIG}: {error}") from None


def with_config(value: object, options: ReadOptions) -> ReadOptions:
    """The same for a parsed config.json. Raises ReadError for one that does not say it."""
    if not isinstance(value, dict):
        raise ReadError("a model's config.json is an object")
    document = Fields(value)
    text = document.inner("text_config") or document
    named = next((name for name in _TOP_K if text.get(name) is not None), _TOP_K[0])
    hidden = options.hidden_size if options.hidden_size is not None else text.whole("hidden_size")
    top_k = options.top_k if options.top_k is not None else text.whole(named)
    return replace(options, hidden_size=hidden, top_k=top_k)


def with_folder(file: Path, options: ReadOptions) -> ReadOptions:
    """The options with what the config.json in a file's folder says of layers of experts; unchanged where
    there is none, or where it describes a model without experts. Raises ReadError for a damaged one."""
    beside = file.parent / CONFIG
    complete = options.hidden_size is not None and options.top_k is not None
    if complete or is_config(file.name) or not file.is_file() or not beside.is_file():
        return options
    try:
        with beside.open("rb") as stream:
            value = decode(stream.read(_MOST).decode())
    except (OSError, UnicodeDecodeError, BadJsonError) as error:
        raise ReadError(f"{beside} beside the file cannot be read: {error}") from None
    try:
        return with_config(value, options)
    except ReadError:
        return options
