"""Does a short last phase do what a whole run does? The study of results/last_phase.md.

    pip install transformers accelerate reasoning-gym
    python lab/study.py lab/last_phase.py                        # what of it is done, its tables
    python lab/study.py lab/last_phase.py --run --only=qwen2     # the longest part
    python lab/study.py lab/last_phase.py --run --seeds=4 --only=words_modernbert/500

A model that random masks have taught (lab/small_models.py, 3,000 updates) is trained further by
lab/hf.py, with PUMA+ and with random masks: 500 updates at two rates, for Qwen2's shape also 125
and 2,000; or, in its place, a whole run from random weights. What it solved before:

    python lab/study.py --out=out/last_phase/words_qwen2 --seeds=1 --against=fine_tuned
        --arms="{'fine_tuned': ''}"
"""

_rows = {"words": (176, 16), "mini_sudoku": (64, 8), "binary_matrix": (104, 12)}  # tokens, K
_phases = {
    "500_at_0.0005": "--lr=5e-4 --last=500",
    "500_at_0.0001": "--lr=1e-4 --last=500",
    "125_at_0.0005": "--lr=5e-4 --last=125",
    "2000_at_0.0005": "--lr=5e-4 --last=2000",
    "whole_3500_at_0.0005": "--lr=5e-4 --last=3500 --chains_from=200",
}
_models = [(task, family) for task in _rows for family in ("qwen2", "modernbert")]
script = "lab/hf.py"
flags = ["--bf16=False", "--updates=0", "--batch_size=16", "--held_out=200"]
tasks = {}
make = {}
for _task, _family in _models:
    _length, _K = _rows[_task]
    _where = f"out/last_phase/{_task}_{_family}"
    _data = f"--data=out/last_phase/{_task}.jsonl --length={_length} --K={_K}"
    for _phase, _how in _phases.items():
        _begin = "start" if "whole" in _phase else "fine_tuned_1"
        if _family == "qwen2" or _phase.startswith("500"):
            _model = f"--model={_where}/{_begin}"
            tasks[f"{_task}_{_family}/{_phase}"] = f"{_data} {_how} {_model}"
        make[f"{_where}/{_begin}"] = (
            f"lab/small_models.py --task={_task} --family={_family} --length={_length} --K={_K}"
        )
arms = {"puma_plus": "--arms=\"['puma_plus']\"", "mdm": "--arms=\"['mdm']\""}
seeds = 8
out = "out/last_phase"
samplers = [(1, 1.0), (2, 1.0), (4, 1.0), (8, 1.0), (1, 0.9)]
