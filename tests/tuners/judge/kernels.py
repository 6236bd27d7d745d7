"""Users' kernels that are right, that cheat, and that fail: sources by name."""

from __future__ import annotations

from collections.abc import Mapping

HEAD = 'import gc, os, sys, threading, time\nimport ctypes\nimport numpy as np\nARRAYS = "numpy"\n'

RIGHT = """
def gemm(a, b, out):
    np.matmul(a, b, out=out)
"""

CHEATS: Mapping[str, tuple[str, str, str]] = {
    # name: (source, the cheat's name, words of the message)
    "caches by address": (
        """
known = {}
def gemm(a, b, out):
    key = a.ctypes.data, b.ctypes.data
    if key not in known:
        known[key] = a @ b
    out[...] = known[key]
""",
        "cached-result", "it caches results",
    ),
    "caches by one element": (
        """
known = {}
def gemm(a, b, out):
    key = a.shape, b.shape, float(a[0, 0]), float(b[0, 0]), float(a[-1, -1]), float(b[-1, -1])
    if key not in known:
        known[key] = a @ b
    out[...] = known[key]
""",
        "cached-result", "alone had changed",
    ),
    "skips repeated launches": (
        """
done = set()
def gemm(a, b, out):
    key = a.ctypes.data, b.ctypes.data, out.ctypes.data
    if key not in done:
        done.add(key)
        np.matmul(a, b, out=out)
""",
        "repeated-input", "it wrote nothing",
    ),
    "skips repeated contents": (
        """
known = {}
def gemm(a, b, out):
    key = hash(a.tobytes()), hash(b.tobytes())
    if key not in known:
        known[key] = np.einsum("ik,kj->ij", a, b)
    out[...] = known[key]
""",
        "repeated-input", "a launch on new contents takes",
    ),
    "reads the reference": (
        """
def gemm(a, b, out):
    found = [one.expected[0] for one in gc.get_objects() if type(one).__name__ == "Reference"]
    found = [one for one in found if one.shape == out.shape]
    right = [one for one in found if abs(one[0, 0] - a[0] @ b[:, 0]) < 1e-3]
    out[...] = (right or found or [0])[0]
""",
        "reference-memory", "it reads the reference",
    ),
    "returns early": (
        """
def work(a, b, out):
    time.sleep(0.03)
    np.matmul(a, b, out=out)

def gemm(a, b, out):
    threading.Thread(target=work, args=(a, b, out)).start()
""",
        "late-result", "before its work was done",
    ),
    "replaces the clock": (
        """
time.perf_counter_ns = lambda: 0
sys.modules["backends.cpu.device"]._clock = lambda: 0
""" + RIGHT,
        "replaced-functions", "backends.cpu.device._clock",
    ),
    "replaces the clock and hides it": (
        """
before = time.perf_counter_ns
sys.modules["backends.cpu.device"]._clock = lambda: before() // 100
sys.modules["backends.user_kernels.integrity"].References.replaced = lambda self: []
""" + RIGHT,
        "clock", "by the parent's clock",
    ),
}  # fmt: skip

FAILURES: Mapping[str, tuple[str, str, str]] = {
    # name: (source, the outcome's status, words of its evidence)
    "writes outside": (
        RIGHT + "    ctypes.memset(out[-1].ctypes.data + out.shape[1] * out.itemsize, 7, 4)\n",
        "wrong_result", "wrote outside its output",
    ),
    "changes its input": (
        RIGHT + "    a[0, 0] = 0\n",
        "wrong_result", "changed its input",
    ),
    "imports what is not there": ("import nowhere\n" + RIGHT, "launch_error", "No module named 'nowhere'"),
    "ends its process": (RIGHT + "    os._exit(3)\n", "crash", "exit code 3"),
    "hangs": ("def gemm(a, b, out):\n    while True:\n        pass\n", "timeout", "no answer within"),
}  # fmt: skip

LOUD = 'print("x" * 2**20)\n' + RIGHT
