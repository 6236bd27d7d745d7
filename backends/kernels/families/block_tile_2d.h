// BlockTile with TN > 1: an outer product, TM + TN reads for TM TN FMAs.
#pragma once

#include "device/block_tile.h"
