#!/usr/bin/env bash
# When does PUMA win? K, tokens revealed per stage: 18 (2 stages) to 3 (12 stages).
# 12 runs beside the 6 of PUMA and random masks that studies share; 2 cores: 15 minutes more (9 runs:
# 10 min 54 s measured).
source "$(dirname "$0")/common.sh"
base # 9
for k in 3 4 5 18; do run "k_$k" --k_schedule="[(0, $k)]"; done
train
names="puma k_3 k_4 k_5 k_18 mdm"
figure study_k ratio "$names" --against=k_schedule --targets=0.5,0.8
figure study_k_curves curves "$names"
