#!/usr/bin/env bash
# When does PUMA win? Difficulty: minimal 6x6 puzzles (9.9 clues) to 20 clues of 36.
# 18 runs beside the 6 of PUMA and random masks that studies share; 2 cores: 20 minutes more (12 runs:
# 12 min 35 s measured).
source "$(dirname "$0")/common.sh"
base
names="puma mdm"
for clues in 12 16 20; do
    for method in puma mdm; do
        run "clues_${clues}_$method" --clues="$clues" --method="$method" --keep_every=250
        names+=" clues_${clues}_$method"
    done
done
train
figure study_clues ratio "$names" --against=clues --targets=0.5,0.8
