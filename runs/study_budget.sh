#!/usr/bin/env bash
# When does PUMA win? Budget: 1,500 to 6,000 updates, the cosine over each.
# 12 runs beside the 6 of sudoku_mini.sh; 2 cores: 55 minutes more (estimated).
source "$(dirname "$0")/common.sh"
base # 3,000
for iterations in 1500 6000; do
    for method in puma mdm; do
        run "budget_${iterations}_$method" --max_iters="$iterations" --method="$method"
    done
done
train
names="puma mdm budget_1500_puma budget_1500_mdm budget_6000_puma budget_6000_mdm"
figure study_budget ratio "$names" --against=max_iters --targets=0.5,0.9
