"""bandwidth.cu: move_words on the host, a thread after another: what it reads and what it stores."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.cuda.compiler import KERNELS, compile_cubin

SOURCE = KERNELS / "bandwidth.cu"
#: Stands in for the hardware: loads and stores are counted. Threads go twice, since the first ones of a warp
#: need the others' sums.
BEFORE = """
#include <cstdio>
#include <map>
#include <vector>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(x)
struct uint4 { unsigned x, y, z, w; };
struct Index { unsigned x; } gridDim, blockDim, blockIdx, threadIdx;
std::map<const void*, int> reads, writes;
std::map<unsigned, unsigned> of_warp;
bool again;
unsigned warp() { return (blockIdx.x * blockDim.x + threadIdx.x) / 32; }
unsigned __reduce_xor_sync(unsigned, unsigned sum) {
    if (!again) of_warp[warp()] ^= sum;
    return of_warp[warp()];
}
"""
AFTER = """
int main(int, char** given) {
    auto number = [&](int at) { return static_cast<unsigned>(std::atoi(given[at])); };
    gridDim.x = number(1), blockDim.x = number(2);
    std::vector<uint4> a(number(3)), b(number(4)), d(number(5));
    unsigned state = 1, all = 0, stored = 0;
    for (auto* words : {&a, &b})
        for (uint4& one : *words)
            for (unsigned* part : {&one.x, &one.y, &one.z, &one.w})
                *part = state = state * 1664525 + 1013904223, all ^= state;
    for (int pass = 0; pass < 2; pass++) {
        again = pass == 1;
        reads.clear(), writes.clear();
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)
                move_words(a.data(), a.size(), b.data(), b.size(), d.data(), d.size());
    }
    bool once = reads.size() == a.size() + b.size() && writes.size() == d.size();
    for (auto& [_, count] : reads) once &= count == 1;
    for (auto& [_, count] : writes) once &= count == 1;
    const unsigned threads = gridDim.x * blockDim.x;
    for (unsigned at = 0; at < threads && at < d.size(); at += EARLY ? 32 : 1) stored ^= d[at].x;
    std::printf("%s, ", once ? "each once" : "not each once");
    std::printf(stored == all ? "the sum of all" : "another");
}
"""


def program(folder: Path, defines: Mapping[str, int], changes: Mapping[str, str] | None = None) -> Path:
    """The kernel's text, with its loads and stores as the host's, as a program."""
    text = SOURCE.read_text()
    loading, storing = (f'    asm volatile("{{ .reg .pred here; setp.ne.u32 here, %{n}' for n in (5, 2))
    host = {
        loading: f"    if (here) v = *p, reads[p]++;\n{loading}",
        storing: f"    if (here) *p = {{value, value, value, value}}, writes[p]++;\n{storing}",
    }
    for was, instead in {**host, **(changes or {})}.items():
        assert text.count(was) == 1, was
        text = text.replace(was, instead)
    text = re.sub(r"asm volatile\(.*?\);", ";", text, flags=re.DOTALL)
    source, path = folder / "move.cpp", folder / "move"
    source.write_text(f"#include <cstdlib>\n{BEFORE}{text}{AFTER}")
    flags = [f"-D{name}={value}" for name, value in defines.items()]
    done = subprocess.run(
        ["g++", "-std=c++17", "-w", *flags, str(source), "-o", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:4000]
    return path


def said(path: Path, blocks: int, threads: int, a: int, b: int, d: int) -> str:
    """What the program says of a launch over so many words."""
    asked = [str(path), *map(str, (blocks, threads, a, b, d))]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.mark.parametrize("early", [0, 1])
@pytest.mark.parametrize("in_flight", [1, 4])
def test_every_word_is_read_once_and_every_word_of_d_stored_once(
    early: int, in_flight: int, tmp_path: Path
) -> None:
    path = program(tmp_path, {"EARLY": early, "IN_FLIGHT": in_flight})
    assert said(path, 3, 64, 1000, 777, 500) == "each once, the sum of all"
    assert said(path, 2, 32, 5, 3, 64) == "each once, the sum of all", "threads that have nothing to read"
    assert said(path, 1, 128, 1, 1, 4000) == "each once, the sum of all"
    assert said(path, 4, 64, 70, 60, 31).startswith("each once, "), "threads without a word of D"


@pytest.mark.parametrize(
    ("early", "text", "wrong", "words"),
    [
        (0, "a : b - a_words) + place", "a : a) + place / 2", "not each once"),
        (0, "(place < a_words ?", "(place <= a_words ?", "another"),
        (0, "first + IN_FLIGHT * stride;; at", "first + stride;; at", "not each once"),
        (1, "leads ? first + stride : first", "first + stride", "not each once"),
        (1, "leads && at == first", "leads", "not each once"),
        (1, "__reduce_xor_sync(~0u, sum)", "sum", "another"),
    ],
)  # fmt: skip
def test_a_mistake_shows(early: int, text: str, wrong: str, words: str, tmp_path: Path) -> None:
    path = program(tmp_path, {"EARLY": early, "IN_FLIGHT": 2}, {text: wrong})
    assert words in said(path, 2, 64, 300, 200, 290)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvrtc_takes_every_kind(arch: str, tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path)
    kinds = [{"IN_FLIGHT": "2", "AHEAD": "1", "EARLY": early} for early in "01"]
    assert len({compile_cubin("bandwidth.cu", arch, cache, kind) for kind in kinds}) == 2
