#!/usr/bin/env bash
# Confidence threshold of fast-forwarding while training: 0.4 to 0.95, and off (paper, figure 4).
# 18 runs beside the 6 of PUMA and random masks that studies share; 2 cores: 23 minutes more
# (from 20 min 47 s measured for 16 of them and a half).
source "$(dirname "$0")/common.sh"
base
names="mdm puma"
for tau in None 0.4 0.65 0.75 0.85 0.95; do
    run "tau_$tau" --tau="$tau"
    names+=" tau_$tau"
done
train
figure tau curves "$names"
figure tau_final final "$names"
