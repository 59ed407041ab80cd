# sudoku_tiny for a first look: PUMA and random masks side by side (studies/race.py).
#
#     python -m studies.race config/sudoku_race.py
#
# 0.3M parameters each, two laptop cores, no download.
from config.sudoku_tiny import *  # noqa: F403

name = "sudoku_race"
k_schedule = 4  # 9 stages, as in results/when.md
compile = False  # a compiler takes longer than it saves in 1,000 updates
