#!/usr/bin/env bash
# Schedules of K (paper, appendix "K schedule ablation"), scaled from 12 to 43 stages of 512 tokens
# to 4 to 9 stages of 36 cells: fixed at either end; the standard one, over the first third of the
# run; aggressive, mild; two stages at the start (the paper's K = 256); and chains dropped at a switch.
# 18 runs beside the 6 of PUMA and random masks that studies share; 2 cores: 23 minutes more
# (measured: 22 min 12 s).
source "$(dirname "$0")/common.sh"
standard="[(0, 9), (80, 7), (160, 6), (240, 5), (320, 4)]"
base # fixed at K = 9
run k_4 --k_schedule="[(0, 4)]"
run k_standard --k_schedule="$standard"
run k_aggressive --k_schedule="[(0, 9), (25, 7), (50, 6), (75, 5), (100, 4)]"
run k_mild --k_schedule="[(0, 9), (200, 7), (400, 6), (600, 5), (800, 4)]"
run k_large_start --k_schedule="[(0, 18), (80, 9), (160, 7), (200, 6), (240, 5), (320, 4)]"
run k_drop_chains --k_schedule="$standard" --method=puma_drop_chains
train
names="puma k_4 k_standard k_aggressive k_mild k_large_start k_drop_chains mdm"
figure k_schedule curves "$names"
figure k_schedule_final final "$names"
