// How an operand lies in memory, and the size of the blocks that walk it.
#pragma once

#include "formats.h"

namespace gemmtune {

// Keep in step with backends/gpu/device_reference.py, which fills it in.
struct Layout {
    i64 rows, columns, ld, stride, copies;
};

constexpr int kThreads = 256;

}  // namespace gemmtune
