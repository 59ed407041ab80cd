#!/usr/bin/env bash
# When does PUMA win? Width of the model: 32, 64, 96 (0.1M to 0.7M parameters).
# 12 runs beside the 6 of PUMA and random masks that studies share; 2 cores: 18 minutes more
# (measured, with other work: 17 min 19 s).
source "$(dirname "$0")/common.sh"
base # 64
for dim in 32 96; do
    for method in puma mdm; do
        run "dim_${dim}_$method" --dim="$dim" --heads="$((dim / 16))" --mlp="$((3 * dim))" --method="$method"
    done
done
train
figure study_size ratio "puma mdm dim_32_puma dim_32_mdm dim_96_puma dim_96_mdm" --against=dim --targets=0.5,0.8
