#!/usr/bin/env bash
# What the authors' code does otherwise: chains that start with a random reveal, and a refill one
# step late, against PUMA here.
# 6 runs beside the 6 of PUMA and random masks that studies share; 2 cores: 7 minutes more (one core,
# with other work, all 12 runs: 34 minutes measured).
source "$(dirname "$0")/common.sh"
base
run puma_random_start --method=puma_random_start
run puma_late_refill --method=puma_late_refill
train
figure variants curves "puma puma_random_start puma_late_refill mdm"
figure variants_final final "puma puma_random_start puma_late_refill mdm"
