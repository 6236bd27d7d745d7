// BlockTile with BUFFERS = 2: the next tiles are loaded into registers while the current ones are multiplied.
#pragma once

#include "device/block_tile.h"
