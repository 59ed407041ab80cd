#!/bin/bash
export PATH=/work/venv/bin:$PATH OMP_NUM_THREADS=1
[ -d data/sudoku/minimal_6x6 ] || python data/sudoku/prepare.py --box="(2,3)" --out=data/sudoku/minimal_6x6
touch /tmp/sudoku_ready
[ -d data/wordproblems/tokens ] || python data/wordproblems/prepare.py
for seed in 1; do for method in puma_plus; do
 w=out/words/${method}_$seed
 [ -e $w/eval.json ] && continue
 python train.py config/gsm_mini.py --method=$method --seed=$seed --eval_interval=0 --dtype=float32 --compile --resume --out_dir=$w && python lab/evaluate.py --out_dir=$w --samplers="[(1,0.9),(1,0.98),(1,0.99)]"
done; done
