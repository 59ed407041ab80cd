#!/usr/bin/env bash
# Word problems by block diffusion, each run from an autoregressive model as in ar.sh: blocks of 64
# and of 16 tokens, a warm-up from 1 to all 128, and all 128 at once.
# (Not Sudoku: a block does not see the clues that come later.)
# 18 runs beside the 9 from an autoregressive model of ar.sh; 2 cores: 27 minutes more (measured).
CONFIG=${CONFIG:-config/gsm_tiny.py}
source "$(dirname "$0")/common.sh"
from_ar block_64 --block_schedule="[(0, 64)]"
from_ar block_16 --block_schedule="[(0, 16)]"
from_ar block_warmup --block_schedule="[(0, 1), (125, 16), (250, 128)]"
from_ar
names=
for name in ar_to block_64 block_16 block_warmup; do names+="${name}_puma ${name}_mdm "; done
figure block curves "$names" --targets=0.1,0.3,0.5
figure block_final final "$names" --targets=0.1,0.3,0.5
