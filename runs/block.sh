#!/usr/bin/env bash
# Block diffusion: blocks of 18 and of 6 cells, and a warm-up of the block size from 1 to all 36.
# 18 runs beside the 6 of sudoku_mini.sh; 2 cores: 2 hours more (estimated: twice the positions).
source "$(dirname "$0")/common.sh"
base
names="puma mdm"
for method in puma mdm; do
    run "block_18_$method" --method="$method" --block_schedule="[(0, 18)]"
    run "block_6_$method" --method="$method" --block_schedule="[(0, 6)]"
    run "block_warmup_$method" --method="$method" --block_schedule="[(0, 1), (300, 6), (600, 36)]"
    names+=" block_18_$method block_6_$method block_warmup_$method"
done
train
figure block curves "$names"
