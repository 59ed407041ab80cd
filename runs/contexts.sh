#!/usr/bin/env bash
# What the contexts are: the share of hidden cells one deduction away, in PUMA's chains and under
# random masks, on minimal puzzles and on easy ones.
# 6 runs (of study_clues.sh) beside the 6 of PUMA and random masks that studies share; 2 cores: 9
# minutes more (measured on one core: 17 minutes 31 s).
source "$(dirname "$0")/common.sh"
base
for method in puma mdm; do
    run "clues_20_$method" --clues=20 --method="$method" --keep_every=250
done
train
each contexts.py "puma clues_20_puma"
figure contexts contexts "puma clues_20_puma"
