// BlockTile with TM > 1: a value of B stays in a register for TM FMAs.
#pragma once

#include "device/block_tile.h"
