# The baseline of config/dream_coder.py: random masks, all else the same.
#
#     torchrun --nproc_per_node=8 train.py config/dream_coder_mdm.py
#
# The paper: at most 3 points of HumanEval above the base model. Not run here.
from config.dream_coder import *  # noqa: F403

method = "mdm"
