# sudoku_tiny for a first look: PUMA and random masks side by side (studies/race.py).
#
#     python -m studies.race config/sudoku_race.py
#
# 0.3M parameters and 100 seconds of a core each, no download. Seeds 1, 2, 3: random masks solve
# 94.1, 68.0, 91.8 %, PUMA 97.3, 94.5, 93.4 (results/sudoku_tiny.md).
from config.sudoku_tiny import *  # noqa: F403

name = "sudoku_race"
k_schedule = 4  # 9 stages, as in results/when.md
compile = False  # it takes 64 seconds, 33 for the layers alone, and would save 15
