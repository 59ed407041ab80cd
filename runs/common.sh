# Shared by runs/*.sh. The packages of requirements.txt (and matplotlib) must be installed; then each
# script goes from nothing to its figure in out/runs/<config>/figures:
#
#     source .venv/bin/activate && runs/tau.sh
#     SEEDS="1 2" JOBS=4 runs/tau.sh         # fewer seeds, more cores: a run takes one
#
# A training that is complete is skipped, one that was stopped goes on, one with other settings is
# made anew (train.py keeps the old one). Scripts share runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seeds=${SEEDS:-1 2 3}
config=${CONFIG:-config/sudoku_tiny.py}
export OUT=${OUT:-out/runs/$(basename "$config" .py)}
export PYTHON=${PYTHON:-python} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
mkdir -p "$OUT/figures"
tasks=()

run() { # NAME ARGUMENTS: note a training of each seed, in $OUT/NAME_SEED
    local name=$1 seed
    for seed in $seeds; do
        tasks+=("$(printf '%q ' "$OUT/${name}_$seed" "$config" --seed="$seed" \
            --eval_policies="['top_k']" "${@:2}")")
    done
}

base() { # PUMA and the baseline at the defaults, which most figures show; 2 cores: 7 minutes
    run puma --method=puma --keep_every=125
    run mdm --method=mdm --keep_every=125
}

from_ar() { # [NAME ARGUMENTS]: PUMA and the baseline, from an autoregressive model; halves of the budget
    local name=${1:-ar_to} seed method
    run ar --method=ar --max_iters=500
    train
    for seed in $seeds; do
        for method in puma mdm; do
            seeds=$seed run "${name}_$method" --method="$method" --max_iters=500 \
                --init_from="$OUT/ar_$seed/checkpoint.pt" "${@:2}"
        done
    done
    train
}

one() { # FOLDER ARGUMENTS: a training, from where it stands
    local out=$1 resume= settings
    shift
    settings="$* $(cat config/*.py | cksum)" # they build on each other
    [ "$(cat "$out/complete" 2>/dev/null)" != "$settings" ] || return 0
    [ -e "$out/complete" ] || [ ! -e "$out/checkpoint.pt" ] || resume=--init_from=resume
    mkdir -p "$out"
    rm -f "$out/complete"
    echo "$out: $*"
    if ! "$PYTHON" train.py "$@" --out_dir="$out" $resume >"$out/log.txt" 2>&1; then
        echo "$out: $(tail -n 1 "$out/log.txt")" >&2
        return 1
    fi
    echo "$settings" >"$out/complete"
}
export -f one

train() { # the trainings noted, $JOBS at once (2)
    printf '%s\0' "${tasks[@]}" | xargs -0 -n 1 -P "${JOBS:-2}" bash -c 'eval "one $1"' _
    tasks=()
}

each() { # SCRIPT "NAMES" ARGUMENTS: a script on every run of these names, $JOBS at once
    local script=$1 folders=() name seed
    shift
    for name in $1; do for seed in $seeds; do folders+=("--out_dir=$OUT/${name}_$seed"); done; done
    shift
    printf '%s\0' "${folders[@]}" | xargs -0 -n 1 -P "${JOBS:-2}" "$PYTHON" -m "$script" "$@"
}

figure() { # FILE FIGURE "NAMES" ARGUMENTS: of all seeds of these runs; its table beside it
    local file=$OUT/figures/$1 folders=() name seed
    for name in $3; do for seed in $seeds; do folders+=("$OUT/${name}_$seed"); done; done
    "$PYTHON" -m studies.plot "${folders[@]}" --figure="$2" --out="$file.png" "${@:4}" | tee "$file.md"
    [ -s "$file.md" ] || rm "$file.md"
}
