# The baseline of config/sudoku.py: random masks, all else the same.
#
#     torchrun --nproc_per_node=2 train.py config/sudoku_mdm.py  # 1 hour on two H100
#
# Paper: needs 1.7 times PUMA's iterations for the same accuracy. Not yet run in full here.
from config.sudoku import *  # noqa: F403

method = "mdm"
