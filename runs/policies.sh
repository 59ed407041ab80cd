#!/usr/bin/env bash
# Samplers: threshold, tokens per step and temperature, on PUMA and on random masks (paper, table 2).
# The 6 runs of sudoku_mini.sh and 15 minutes more; 2 cores (estimated).
CONFIG=${CONFIG:-config/sudoku_mini.py}
source "$(dirname "$0")/common.sh"
base
train
grid() { each eval.py "puma mdm" --grid --policies="['top_k']" --tau_entropies="[]" "$@"; }
grid --reveals="[1, 2, 3, 5, 9]" --taus="[None]"
grid --reveals="[2]" --taus="[0.8, 0.9, 0.95]"
grid --reveals="[2]" --taus="[None]" --temperatures="[0.2, 0.5, 0.7, 0.8, 1.0]"
figure policies policies "puma mdm"
