"""Tasks of reasoning-gym, picked by a rule (results/thirty.md), at one token a step and at many.

    pip install reasoning-gym
    python lab/study.py lab/thirty.py                     # what of it is done, and its tables
    python lab/study.py lab/thirty.py --run               # trains first: 25 hours of a core
    python lab/study.py lab/thirty.py --figure=thirty.png # accuracy over tokens per pass

PUMA+ and random masks after as many updates, random masks after twice as many, and PUMA on ten of
the tasks, drawn by lot.
"""

_generators = {  # {generator: its flags, tokens of a stage: an eighth of a row}
    "ab": ("", 8),
    "binary_matrix": ("--min_n=4 --max_n=5", 12),
    "complex_arithmetic": ("", 10),
    "countdown": ("--max_numbers=4", 16),
    "cryptarithm": ("", 10),
    "decimal_arithmetic": ("", 8),
    "decimal_chain_sum": ("", 10),
    "fraction_simplification": ("", 5),
    "game_of_life": ("--grid_size_x=5 --grid_size_y=5", 16),
    "group_anagrams": ("--max_anagram_groups=2 --max_words_per_group=2", 16),
    "letter_jumble": ("--max_words=5", 14),
    "mini_sudoku": ("", 8),
    "number_filtering": ("--max_numbers=4", 16),
    "number_format": ("--max_num_candidates=3", 16),
    "number_sorting": ("--max_numbers=6", 15),
    "palindrome_generation": ("", 5),
    "palindrome_partitioning": ("--max_string_len=5", 14),
    "path_star": ("--node_range=100", 14),
    "polynomial_equations": ("", 13),
    "polynomial_multiplication": ("--max_terms=2 --max_polynomials=2", 14),
    "pool_matrix": ("--max_rows=4 --max_cols=4", 16),
    "power_function": ("", 5),
    "rotate_matrix": ("--max_n=5", 15),
    "simple_integration": ("--max_terms=3", 14),
    "sokoban": ("--max_w=6 --max_h=6 --min_boxes=2 --max_boxes=4", 14),
    "spell_backward": ("", 3),
    "spiral_matrix": ("--max_n=5", 12),
    "string_insertion": ("", 6),
    "word_sequence_reversal": ("--max_words=6", 16),
}
tasks = {
    name: f"--data=data/gym/{name} --k_schedule=[(0,{K})]" for name, (_, K) in _generators.items()
}
make = {
    f"data/gym/{name}": f"data/gym/prepare.py {name} {size}"
    for name, (size, _) in _generators.items()
}
flags = ["config/gym.py", "--dtype=float32", "--compile", "--eval_interval=0", "--eval_reveal=128"]
arms = {
    "puma_plus": "--method=puma_plus",
    "mdm": "--method=mdm",
    "mdm_twice": "--method=mdm --max_iters=2400",
    "puma": "--method=puma",
}
partly = {
    "puma": [
        "complex_arithmetic", "countdown", "cryptarithm", "game_of_life", "number_format",
        "number_sorting", "path_star", "simple_integration", "sokoban", "spiral_matrix",
    ]
}  # fmt: skip
seeds = 4
out = "out/thirty"
samplers = [(1, 1.0), (2, 1.0), (4, 1.0), (8, 1.0), (1, 0.9), (128, 1.0)]  # the last: all at once
columns = [(1, 1.0), (4, 1.0), (1, 0.9)]
weights = False
