"""The text of a C header: literals, remarks, vocabularies, the numbers of a problem."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.dtypes import COMPUTE_TYPES, DTYPES
from backends.problem import GemmProblem
from backends.problem_rules import ACTIVATIONS, ALPHA_CLASSES, BETA_CLASSES, SCALES, TRANSPOSES
from service.formats.gemmtune.c_header import problem_numbers
from service.formats.gemmtune.c_header_text import DTYPE, FIELDS, literal, remark
from tests.service.formats.gemmtune.test_c_header import COMPILERS, MADE, Probe, header
from tests.service.formats.made import problems

# ---- a problem -----------------------------------------------------------------------------------


@given(problems())
def test_the_numbers_of_a_problem_are_its_own(problem: GemmProblem) -> None:
    numbers = problem_numbers(problem)
    values = problem.to_dict()
    assert values.keys() == FIELDS.keys()
    for (name, table), number in zip(FIELDS.items(), numbers, strict=True):
        value = values[name]
        assert number == (int(value) if table is None else table[value])
        assert 0 <= number < (2**63 if name in list(FIELDS)[:12] else 2**8)


def test_the_vocabularies_are_whole() -> None:
    text, _ = header([])
    for prefix, values in (
        ("TRANS", TRANSPOSES),
        ("DTYPE", DTYPES),
        ("COMPUTE", COMPUTE_TYPES),
        ("ALPHA", ALPHA_CLASSES),
        ("BETA", BETA_CLASSES),
        ("ACTIVATION", ACTIVATIONS),
        ("SCALE", SCALES),
    ):
        for value in values:
            assert re.search(rf"^    GEMMTUNE_{prefix}_{value.upper()} = [0-9]+,?$", text, re.M)
    assert DTYPE[None] == 0


def test_every_identifier_has_the_prefix() -> None:
    text = re.sub(r"/\*.*?\*/|\"(?:[^\"\\]|\\.)*\"", "", header(MADE)[0], flags=re.S)
    declared = re.findall(r"\b(?:enum|struct|define|ifndef|const \w+ \*?|static inline \w+) (\w+)\b", text)
    declared += re.findall(r"^\} (\w+);", text, re.M)
    assert len(declared) > 12
    assert [name for name in declared if not re.match("gemmtune_|GEMMTUNE_", name)] == []


# ---- literals ------------------------------------------------------------------------------------

TEXTS = (
    "", 'a"b\\c', "??=??/??'", "line\nbreak\r\t\x1b[31m", "é\u202e\U0001f600", "%s%n", "*/ /* //", "\x7f1",
    "\ud800", "\x01" + "7" * 4094,
)  # fmt: skip
PRINT = """\
#include "table.h"
#include <stdio.h>

int main(void)
{
    static const char *const texts[] = {
        %s
    };
    const char *c;
    size_t i;
    for (i = 0; i < sizeof(texts) / sizeof(texts[0]); ++i) {
        for (c = texts[i]; *c; ++c) {
            printf("%%02x", (unsigned)(unsigned char)*c);
        }
        puts("");
    }
    return 0;
}
"""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_literals_are_the_very_bytes(compiler: str, tmp_path: Path) -> None:
    main = PRINT % ",\n        ".join(map(literal, TEXTS))
    raw = [text.encode("utf-8", "backslashreplace").hex() for text in TEXTS]
    assert Probe(tmp_path, header([])[0], compiler, main).ask([]) == raw


@given(st.text(max_size=50))
def test_literals_are_ascii_and_closed(text: str) -> None:
    if "\0" in text:
        with pytest.raises(ValueError, match="has a NUL"):
            literal(text)
        return
    found = literal(text)
    assert found.isascii()
    assert found.isprintable()
    assert re.fullmatch(r'"(?:[^"\\?]|\\["\\?]|\\[0-7]{3})*"', found)


@given(st.text(st.sampled_from("*/\\?\n a"), max_size=20))
def test_remarks_stay_within_their_comment(text: str) -> None:
    found = remark(text)
    assert not {"\n", "\\", "?"} & set(found)
    assert "*/" not in f"* {found}"
    assert "/*" not in found
