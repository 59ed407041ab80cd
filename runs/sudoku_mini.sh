#!/usr/bin/env bash
# PUMA against random masks on minimal 6x6 puzzles: learning curves, iterations to an accuracy, and
# the loss under random masks (an estimate of the NELBO per token).
# 6 runs; 2 cores: 20 minutes (from 6 min 7 s measured for one of them on one core).
CONFIG=${CONFIG:-config/sudoku_mini.py}
source "$(dirname "$0")/common.sh"
base
train
figure sudoku_mini curves "puma mdm"
figure sudoku_mini_loss curves "puma mdm" --metric=val_loss
