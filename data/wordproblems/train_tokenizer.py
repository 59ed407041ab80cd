"""Make vocabulary.tiktoken, the byte-pair vocabulary of the generated word problems, anew.

    python data/wordproblems/train_tokenizer.py

The file is part of the repository: only a change of wordproblems.py calls for another one.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data import tokenizer
from data.wordproblems import generate as wordproblems

size = 1500  # ranks; end of text and mask come on top
problems = 20_000  # to count the words of


HERE = Path(__file__).resolve().parent


def main():
    texts = (
        part
        for problem in wordproblems.generate(problems, "train")
        for part in (problem.question + "\n", problem.code)
    )
    ranks = tokenizer.train_ranks(texts, size)
    tokenizer.save(ranks, HERE / "vocabulary.tiktoken")
    print(f"{len(ranks)} ranks in {HERE / 'vocabulary.tiktoken'}")


if __name__ == "__main__":
    configure(globals())
    main()
