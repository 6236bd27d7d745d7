// Gated rows of weights (SwiGLU): the first half of a matrix's m rows are the gate's, the second half up's, and an
// element of D is silu(gate) * up of two sums in fp32 (backends/grouping.py).
//
// A tile takes rows of both halves in turn: its line 2 j is row j of the gate's, its line 2 j + 1 row j of up's. So two
// neighbouring sums of a column are one element of D, wherever a kernel has its sums, and a tile of BM lines has BM / 2
// rows of D. Lines are counted as the rows are: there are m of them, and tiles begin at even ones.
#pragma once

#include "device/epilogue.h"

namespace gemmtune {

// Elements from the operand's first to the line's first. `ld`: from row to row; `half`: from the gate's first row to
// up's.
GEMMTUNE_DEVICE i64 gated_line(i64 line, i64 ld, i64 half) { return line / 2 * ld + line % 2 * half; }

GEMMTUNE_DEVICE float gated(float gate, float up) { return activate(gate, kSilu) * up; }

}  // namespace gemmtune
