#!/usr/bin/env bash
# PUMA against random masks on minimal 6x6 puzzles: learning curves, iterations to an accuracy, and
# the loss under random masks (an estimate of the NELBO per token).
# 6 runs; 2 cores: 18 minutes (estimated from 200 examples/s a core and 10 s an evaluation).
CONFIG=${CONFIG:-config/sudoku_mini.py}
source "$(dirname "$0")/common.sh"
base
train
figure sudoku_mini curves "puma mdm"
figure sudoku_mini_loss curves "puma mdm" --metric=val_loss
