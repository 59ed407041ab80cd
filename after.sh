#!/bin/bash
cd /work/pairs; export PATH=/work/venv/bin:$PATH OMP_NUM_THREADS=1
while [ ! -e out/words/puma_plus_1/eval.json ]; do sleep 5; done
while ! grep -q "0.99" out/words/puma_plus_1/eval.json; do sleep 5; done
pkill -f words.sh; pkill -f "method=mdm --seed=1 --eval_interval=0 --dtype=float32 --compile"
exec taskset -c 1 python pairs.py run_lengths products
