#!/usr/bin/env bash
# Word problems: PUMA and random masks, from scratch and from an autoregressive model of a quarter
# of the budget. (Not Sudoku: an autoregressive model does not see the clues that come later.)
# 15 runs; 2 cores: 100 minutes (estimated).
CONFIG=${CONFIG:-config/gsm_tiny.py}
source "$(dirname "$0")/common.sh"
base
run ar --method=ar --max_iters=500
train
for seed in $seeds; do
    for method in puma mdm; do
        seeds=$seed run "ar_to_$method" --method="$method" --init_from="$OUT/ar_$seed/checkpoint.pt"
    done
done
train
figure ar curves "puma ar_to_puma mdm ar_to_mdm"
