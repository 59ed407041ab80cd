#!/usr/bin/env bash
# Samplers: threshold, tokens per step and temperature, on PUMA and on random masks (paper, table 1),
# and other policies and thresholds by entropy (paper, section "Robustness across inference policies").
# The 6 runs of sudoku_mini.sh and 12 minutes more; 2 cores (measured: 11 min 40 s).
CONFIG=${CONFIG:-config/sudoku_mini.py}
source "$(dirname "$0")/common.sh"
base
train
grid() { each eval "puma mdm" --grid "$@"; }
grid --policies="['top_k']" --reveals="[1, 2, 3, 5, 9]" --taus="[None]"
grid --policies="['top_k']" --reveals="[2]" --taus="[0.8, 0.9, 0.95]" --tau_entropies="[0.1, 0.5]"
grid --policies="['top_k']" --reveals="[2]" --taus="[None]" --temperatures="[0.2, 0.5, 0.7, 0.8, 1.0]"
grid --policies="['margin', 'entropy', 'random']" --reveals="[3]" --taus="[None]"
figure policies policies "puma mdm"
