// BlockTile with WIDE: 16-byte loads from global and from shared memory.
#pragma once

#include "device/block_tile.h"
