#!/usr/bin/env bash
# Word problems by block diffusion: blocks of 88 and of 16 tokens, and a warm-up from 1 to all 176.
# (Not Sudoku: a block does not see the clues that come later.)
# 18 runs beside the 6 of ar.sh; 2 cores: 9 hours more (estimated: twice the positions).
CONFIG=${CONFIG:-config/gsm_mini.py}
source "$(dirname "$0")/common.sh"
base
names="puma mdm"
for method in puma mdm; do
    run "block_88_$method" --method="$method" --block_schedule="[(0, 88)]"
    run "block_16_$method" --method="$method" --block_schedule="[(0, 16)]"
    run "block_warmup_$method" --method="$method" --block_schedule="[(0, 1), (500, 16), (1000, 176)]"
    names+=" block_88_$method block_16_$method block_warmup_$method"
done
train
figure block curves "$names"
