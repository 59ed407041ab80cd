# MBPP, for any run on text. These are settings of eval.py.
#
#     python eval.py config/mbpp.py --out_dir=out/dream_coder_puma_1           pass@1 of one sample
#     python eval.py config/mbpp.py --file=mbpp.jsonl --reference              the file's solutions
from config.humaneval import *  # noqa: F403

problems = "mbpp"
temperature = 0.1
