#!/usr/bin/env bash
# When does PUMA win? Budget: 750 to 3,000 updates, the cosine over each.
# 12 runs beside the 6 of sudoku_mini.sh; 2 cores: 45 minutes more (estimated).
source "$(dirname "$0")/common.sh"
base # 1,500
for iterations in 750 3000; do
    for method in puma mdm; do
        run "budget_${iterations}_$method" --max_iters="$iterations" --method="$method"
    done
done
train
names="puma mdm budget_750_puma budget_750_mdm budget_3000_puma budget_3000_mdm"
figure study_budget ratio "$names" --against=max_iters --targets=0.5,0.9
