#!/usr/bin/env bash
# Schedules of K (paper, appendix "K schedule ablation"), scaled from 12 to 43 stages of 512 tokens
# to 4 to 9 stages of 36 cells: fixed at either end; the standard one, over the first third of the
# run; aggressive, mild; two stages at the start (the paper's K = 256); and chains dropped at a switch.
# 18 runs beside the 6 of sudoku_mini.sh; 2 cores: 55 minutes more (estimated).
source "$(dirname "$0")/common.sh"
standard="[(0, 9), (125, 7), (250, 6), (375, 5), (500, 4)]"
base # fixed at K = 9
run k_fixed_4 --k_schedule="[(0, 4)]"
run k_standard --k_schedule="$standard"
run k_aggressive --k_schedule="[(0, 9), (37, 7), (75, 6), (112, 5), (150, 4)]"
run k_mild --k_schedule="[(0, 9), (300, 7), (600, 6), (900, 5), (1200, 4)]"
run k_large_start --k_schedule="[(0, 18), (125, 9), (250, 7), (312, 6), (375, 5), (500, 4)]"
run k_drop_chains --k_schedule="$standard" --method=puma_drop_chains
train
names="puma k_fixed_4 k_standard k_aggressive k_mild k_large_start k_drop_chains mdm"
figure k_schedule curves "$names"
figure k_schedule_final final "$names"
