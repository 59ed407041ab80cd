#!/usr/bin/env bash
# When does PUMA win? Width of the model: 48, 96, 144 (0.2M to 1.5M parameters).
# 12 runs beside the 6 of sudoku_mini.sh; 2 cores: 40 minutes more (estimated).
source "$(dirname "$0")/common.sh"
base # 96
for dim in 48 144; do
    for method in puma mdm; do
        run "dim_${dim}_$method" --dim="$dim" --mlp="$((3 * dim))" --method="$method"
    done
done
train
figure study_size ratio "puma mdm dim_48_puma dim_48_mdm dim_144_puma dim_144_mdm" --against=dim --targets=0.5,0.9
