// The order in which blocks process the tiles of D.
#pragma once

#include "device/args.h"

namespace gemmtune {

// The position of the tiles of one GEMM: bands of GROUP rows of tiles, each traversed through all columns, so
// that concurrent blocks share their operands in L2.
template <int BM, int BN, int GROUP>
struct TileOrder {
    unsigned tiles_m, tiles_n;

    GEMMTUNE_DEVICE explicit TileOrder(const GemmArgs& args)
        : tiles_m((static_cast<unsigned>(args.m) - 1) / BM + 1),
          tiles_n((static_cast<unsigned>(args.n) - 1) / BN + 1) {}

    // The first row and column of tile number `tile`.
    GEMMTUNE_DEVICE void place(unsigned tile, i64& i, i64& j) const {
        const unsigned band = tile / (GROUP * tiles_n), within = tile % (GROUP * tiles_n);
        const unsigned left = tiles_m - band * GROUP, high = left < GROUP ? left : GROUP;
        i = static_cast<i64>(band * GROUP + within % high) * BM;
        j = static_cast<i64>(within / high) * BN;
    }
};

}  // namespace gemmtune
