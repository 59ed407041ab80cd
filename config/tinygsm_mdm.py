# The baseline of config/tinygsm.py: random masks, all else the same.
#
#     torchrun --nproc_per_node=8 train.py config/tinygsm_mdm.py
#
# Paper: 33.6 % of GSM8K's test questions, which PUMA reaches in 2.3 times fewer updates. Not yet
# run in full here.
from config.tinygsm import *  # noqa: F403

method = "mdm"
