#!/usr/bin/env bash
# PAPL, a loss weighed by the model's confidence (alpha 1, 3, 5), on random masks and on PUMA.
# 18 runs beside the 6 of PUMA and random masks that studies share; 2 cores: 21 minutes more
# (8 runs: 9 min 13 s measured).
source "$(dirname "$0")/common.sh"
base
names="puma mdm"
for alpha in 1 3 5; do
    for method in puma mdm; do
        run "papl_${alpha}_$method" --papl="$alpha" --method="$method"
        names+=" papl_${alpha}_$method"
    done
done
train
figure papl curves "$names"
figure papl_final final "$names"
