# HumanEval, for any run on text. These are settings of eval.py.
#
#     python eval.py config/humaneval.py --out_dir=out/dream_coder_puma_1      pass@1 of one sample
#     python eval.py config/humaneval.py --out_dir=... --samples=20 --temperature=0.8   and pass@10
#     python eval.py config/humaneval.py --file=HumanEval.jsonl --reference    the file's solutions
problems = "humaneval"
policy = "entropy"
reveal = 1
temperature = 0.2
top_p = 0.9
batch_size = 16
