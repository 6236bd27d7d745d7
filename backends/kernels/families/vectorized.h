// BlockTile with WIDE: 16 bytes a load of global memory and of shared memory.
#pragma once

#include "device/block_tile.h"
