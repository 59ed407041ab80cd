"""Speed, as ratios against a conventional implementation, measured side by side.

    python bench.py --reference=path/to/conventional.py     everything
    python bench.py --part=methods                          without a reference

step      sequences/s of a PUMA training step at the paper's Sudoku shape, over the reference's
sample    puzzles/s of the sampler at 2 tokens per step, over the reference's
methods   seconds of a PUMA step over one of the baseline's, at the same number of hidden tokens
attention seconds of the plain products over the fused kernel, forward and backward

The reference is a script run as `REFERENCE step --shape sudoku --method puma` and `REFERENCE
sample --shape sudoku`, which prints a JSON line with sequences_per_second. Ours and theirs
alternate, and the median of the ratios counts, so that a machine's drift cancels.
"""
