"""Make vocabulary.tiktoken, the byte-pair vocabulary of the generated word problems, anew.

    python data/wordproblems/train_tokenizer.py

The file is part of the repository: only a change of wordproblems.py calls for another one.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

import tokenizer  # noqa: E402
import wordproblems  # noqa: E402
from configurator import configure  # noqa: E402

size = 1500  # ranks; end of text and mask come on top
problems = 20_000  # to count the words of


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
