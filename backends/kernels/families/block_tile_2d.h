// BlockTile with TN > 1: an outer product of TM + TN values read gives TM TN multiplications.
#pragma once

#include "device/block_tile.h"
