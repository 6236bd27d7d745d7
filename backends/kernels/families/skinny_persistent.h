// A few columns by persistent blocks: GemvPersistent with COLUMNS of 2 or 4.
#pragma once

#include "families/gemv_persistent.h"
