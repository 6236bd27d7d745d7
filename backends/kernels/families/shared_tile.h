// BlockTile with TM = TN = 1: each element is read from global memory once per block; two reads of shared
// memory for each FMA.
#pragma once

#include "device/block_tile.h"
