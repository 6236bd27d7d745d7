// BlockTile with TM = TN = 1: global memory is read once a block, shared memory twice a multiplication.
#pragma once

#include "device/block_tile.h"
