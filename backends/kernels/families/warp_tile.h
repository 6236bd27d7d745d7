// BlockTile with WM x WN: the threads of a warp form a nearly square patch of the tile.
#pragma once

#include "device/block_tile.h"
