#!/usr/bin/env bash
# When does PUMA win? Budget: 500 to 2,000 updates, the cosine over each.
# 12 runs beside the 6 of PUMA and random masks that studies share; 2 cores: 20 minutes more
# (measured, with other work: 19 min 28 s).
source "$(dirname "$0")/common.sh"
base # 1,000
for iterations in 500 2000; do
    for method in puma mdm; do
        run "budget_${iterations}_$method" --max_iters="$iterations" --method="$method"
    done
done
train
names="puma mdm budget_500_puma budget_500_mdm budget_2000_puma budget_2000_mdm"
figure study_budget ratio "$names" --against=max_iters --targets=0.5,0.8
