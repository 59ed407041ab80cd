#!/usr/bin/env bash
# The order in which cells are revealed along training: distance to the final order (paper, appendix,
# eq. traj-dist), and pictures of it, of the training chain and of the sampler.
# The 6 runs of sudoku_mini.sh and 4 minutes more; 2 cores (measured: 190 s).
CONFIG=${CONFIG:-config/sudoku_mini.py}
source "$(dirname "$0")/common.sh"
base
train
each studies.trajectories "puma mdm"
figure trajectories_distance distance "puma mdm"
figure trajectories_order order puma
