#!/usr/bin/env bash
# When does PUMA win? Chains held, in batches of 32: 1 to 128.
# 9 runs beside the 6 of PUMA and random masks that studies share; 2 cores: 12 minutes more
# (measured: 11 min 17 s).
source "$(dirname "$0")/common.sh"
base # 32
for buffer in 1 8 128; do run "buffer_$buffer" --buffer="$buffer"; done
train
figure study_buffer ratio "puma buffer_1 buffer_8 buffer_128 mdm" --against=buffer --targets=0.5,0.8
