#!/usr/bin/env bash
# Word problems: PUMA and random masks from scratch, and for half of the budget from a model trained
# autoregressively for the other half, which the iterations of the former do not count. (Not Sudoku:
# such a model does not see the clues that come later.)
# 15 runs; 2 cores: 22 minutes (measured on one core: 42 minutes).
CONFIG=${CONFIG:-config/gsm_tiny.py}
source "$(dirname "$0")/common.sh"
base
from_ar
figure ar curves "ar_to_puma ar_to_mdm puma mdm" --targets=0.1,0.3,0.5
figure ar_final final "ar_to_puma ar_to_mdm puma mdm" --targets=0.1,0.3,0.5
