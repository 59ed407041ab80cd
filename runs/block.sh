#!/usr/bin/env bash
# Word problems by block diffusion: blocks of 64 and of 16 tokens, and a warm-up from 1 to all 128.
# (Not Sudoku: a block does not see the clues that come later.)
# 18 runs beside the 6 of ar.sh; 2 cores: 4 hours more (estimated: twice the positions).
CONFIG=${CONFIG:-config/gsm_tiny.py}
source "$(dirname "$0")/common.sh"
base
names="puma mdm"
for method in puma mdm; do
    run "block_64_$method" --method="$method" --block_schedule="[(0, 64)]"
    run "block_16_$method" --method="$method" --block_schedule="[(0, 16)]"
    run "block_warmup_$method" --method="$method" --block_schedule="[(0, 1), (250, 16), (500, 128)]"
    names+=" block_64_$method block_16_$method block_warmup_$method"
done
train
figure block curves "$names"
