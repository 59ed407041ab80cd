#!/usr/bin/env bash
# What the contexts are: the share of hidden cells one deduction away, in PUMA's chains and under
# random masks, on minimal puzzles and on easy ones.
# 6 runs (of study_clues.sh) beside the 6 of PUMA and random masks that studies share; 2 cores: 9
# minutes more (measured on one core: 17 minutes 31 s).
source "$(dirname "$0")/common.sh"
run puma --method=puma --keep_every=125
run clues_20_puma --clues=20 --method=puma --keep_every=250
train
each contexts.py "puma clues_20_puma"
figure contexts contexts "puma clues_20_puma"
