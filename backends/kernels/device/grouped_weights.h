// Quantised weights of a grouped product: a team's chunk of them is that of a product of one matrix (dequant_chunk.h),
// whose matrix is the weights of a tile's group, and whose columns are the tile's.
#pragma once

#include "device/dequant_tiles.h"
#include "device/dequant_together.h"
#include "device/grouped.h"

namespace gemmtune {

// PRODUCTS: see dequant_ring.h.
template <typename TYPES, typename QUANT, int COLUMNS, int ROWS, int BK, int WARPS_M, typename PRODUCTS = ByWarps>
struct GroupedWeights {
    using Chunk = DequantChunk<TYPES, QUANT, COLUMNS, ROWS, BK, WARPS_M, PRODUCTS>;
    using Products = DequantTiles<Chunk, ROWS / 16>;
    using Together = DequantTogether<Chunk, QUANT, PRODUCTS, ROWS / 16>;
    using Args = GroupedWeightArgs;
    using D = typename TYPES::D;
    using Sums = typename Products::Sums;
    static constexpr bool kFinished = false;  // a group's scales multiply its sums, or the weights
    static constexpr bool kGated = false;
    static constexpr int kTeam = Chunk::kTeam, kAll = Chunk::kAll, kChunk = BK, kSlot = Chunk::kSlot;
    static constexpr int kTiles = Products::kTiles, kHalves = Chunk::kHalves, kPlace = PRODUCTS::kPlace;
    static_assert(QUANT::kGroup != 0, "scales of groups of k");
    static_assert(!PRODUCTS::kOfWarpgroups || (COLUMNS % 8 == 0 && WARPS_M % 4 == 0), "a team is whole warpgroups");

    // Where a warp of the team reads.
    struct Member {
        typename Chunk::Reads reads;
        GEMMTUNE_DEVICE Member(const Args& all, int warp) : reads(warp, all.gemm.k, all.scale_row) {}
    };

    // A warp's copies of the tile that was started last.
    struct Copies {
        typename Chunk::Copies now;
        GEMMTUNE_DEVICE explicit Copies(const Args& all) : now(of_tile(all, {0, 0, 0, 0, 0}), 0, member()) {}
        GEMMTUNE_DEVICE void start(const Args& all, const GroupedTilePlace& at) {
            now = typename Chunk::Copies(of_tile(all, at), at.row, member());
        }
        GEMMTUNE_DEVICE void chunk(char* slot, int number) const { now.chunk(slot, number); }

    private:
        static GEMMTUNE_DEVICE int member() { return warp_index() % WARPS_M; }
    };

    static GEMMTUNE_DEVICE void multiply(char* slot, const Member& warp, Sums& sum) {
        if constexpr (PRODUCTS::kOfWarpgroups) {
            Together::multiply(slot, warp.reads, sum);
        } else {
            GEMMTUNE_UNROLL
            for (int tile = 0; tile < kTiles; tile += Products::kAtOnce)
                Products::multiply(opaque_shared(slot), warp.reads, tile, sum);
        }
    }
    static GEMMTUNE_DEVICE void show() { PRODUCTS::show(); }
    static GEMMTUNE_DEVICE float finished(const Args&, const GroupedTilePlace&, int, int) { return 1.0f; }

private:
    // The product of a tile's group by the tile's columns.
    static GEMMTUNE_DEVICE WeightArgs of_tile(const Args& all, const GroupedTilePlace& at) {
        WeightArgs own{};
        const i64 group = at.group, column = static_cast<i64>(at.start) + at.column;
        own.gemm = all.gemm;
        own.gemm.a = static_cast<const char*>(all.gemm.a) + group * all.gemm.stride_a;
        own.gemm.b = static_cast<const char*>(all.gemm.b) + column * all.gemm.ldb * 2;
        own.gemm.n = at.columns;
        own.scales = static_cast<const char*>(all.scales) + group * all.scale_group;
        own.zeros = static_cast<const char*>(all.zeros) + group * all.zero_group;
        own.scale_row = all.scale_row, own.scale_bytes = all.scale_bytes - group * all.scale_group;
        return own;
    }
};

}  // namespace gemmtune
