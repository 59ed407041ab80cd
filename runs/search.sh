#!/usr/bin/env bash
# Is there a better choice of contexts? Any that sees x only keeps the minimiser of the loss: random
# masks first, half random masks, a quarter of the steps at random, the reverse order, chains in
# random order, other policies; against PUMA and random masks.
# 21 runs beside the 6 of PUMA and random masks that studies share; 2 cores: 25 minutes more (from
# 2.2 minutes a run on one core, measured).
source "$(dirname "$0")/common.sh"
base
for method in puma_mixed puma_explore puma_reverse; do run "$method" --method="$method"; done
run chains_from_250 --chains_from=250
for policy in random entropy margin; do run "policy_$policy" --policy="$policy"; done
train
names="puma chains_from_250 puma_mixed puma_explore puma_reverse policy_random policy_entropy policy_margin mdm"
figure search curves "$names"
figure search_final final "$names"
