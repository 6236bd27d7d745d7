// BlockTile with WM x WN: a warp's threads lie in a patch of the tile that is nearly square.
#pragma once

#include "device/block_tile.h"
