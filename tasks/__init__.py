"""What a run can be trained on: modules whose load(config) gives the data (keys as in train.py).

What it gives has train, validation, test, length, vocab_size, mask and padding(x0).
"""

import sudoku
from tasks import humaneval, text

TASKS = {"sudoku": sudoku, "text": text, "humaneval": humaneval}
