#!/usr/bin/env bash
# Initialisation from an autoregressive model of half the budget: PUMA and random masks with it and
# without.
# 9 runs beside the 6 of sudoku_mini.sh; 2 cores: 30 minutes more (estimated).
source "$(dirname "$0")/common.sh"
base
run ar --method=ar --max_iters=1500
train
for seed in $seeds; do
    for method in puma mdm; do
        seeds=$seed run "ar_to_$method" --method="$method" --init_from="$OUT/ar_$seed/checkpoint.pt"
    done
done
train
figure ar curves "puma ar_to_puma mdm ar_to_mdm"
