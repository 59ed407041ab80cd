#!/usr/bin/env bash
# What the contexts are: the share of hidden cells one deduction away, in PUMA's chains and under
# random masks, on minimal puzzles and on easy ones.
# 3 runs of PUMA that studies share, 3 of study_clues.sh, and 3 minutes more; 2 cores: 10 minutes
# (measured: 2 min 49 s without the runs).
source "$(dirname "$0")/common.sh"
run puma --method=puma --keep_every=125
run clues_20_puma --clues=20 --method=puma --keep_every=250
train
each studies.contexts "puma clues_20_puma"
figure contexts contexts "puma clues_20_puma"
