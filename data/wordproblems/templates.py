"""The templates of generate.py: a reader of templates.txt, whose head says how to write them."""

import random
import re
from pathlib import Path

FILE = Path(__file__).with_suffix(".txt")
RANGE = re.compile(r"(\$?)([^{|]+?)\.\.([^{|]+?)(?: step ([^{|]+))?")
TEXT = r"(?:[^][<>{}]|\{[a-zA-Z_]\w*(?:\.[a-zA-Z]+)?\})*"  # with names, but nothing to draw
DRAWN = re.compile(r"\{([^{}]+\.\.[^{}]+)\}|" rf"\[({TEXT})\]|<({TEXT})>")


# -- what is drawn ---------------------------------------------------------------------------------
class Money(float):
    """Dollars with cents: 4.5 prints as 4.50."""

    def __str__(self):
        return f"{self:.2f}"


class Draws:
    """What templates draw at random, by `random()` alone: Python promises its sequence for ever."""

    def __init__(self, seed):
        self.random = random.Random(seed).random

    def number(self, low, high, step=1):
        """An integer low, low + step, ..., at most high."""
        return low + step * int(self.random() * ((high - low) // step + 1))

    def pick(self, *options):
        return options[int(self.random() * len(options))]

    def two(self, options):
        """Two different ones, in random order."""
        first = int(self.random() * len(options))
        second = int(self.random() * (len(options) - 1))
        return options[first], options[second + (second >= first)]

    def price(self, low, high):
        """Dollars; one price in three has quarters, which binary floats add without error."""
        whole, quarters = self.number(low, high), self.number(1, 3)
        return Money(whole + quarters / 4) if self.random() < 1 / 3 else whole

    def aside(self, *sentences):
        """Now and then a sentence with a number that the program does not need."""
        sentence = self.pick(*sentences)
        return f" {sentence}" if self.random() < 0.3 else ""


class Word(str):
    """A name or a plural; its other forms are attributes."""

    def __new__(cls, text, **forms):
        word = super().__new__(cls, text)
        vars(word).update(forms)
        return word


def person(name, he, his):
    pronouns = {"he": he, "He": he.capitalize(), "his": his, "His": his.capitalize()}
    return Word(name, var=name.lower(), **pronouns)


def thing(one, many=""):
    a = f"an {one}" if one[0] in "aeiou" else f"a {one}"
    return Word(many or one + "s", one=one, a=a, A=a.capitalize())


# -- templates -------------------------------------------------------------------------------------
class Template:
    """One of the file, compiled to a function text(draws): a line for each value, as
    `_2 = draws.pick(f'has', f'buys')`, and `return f'    Amy {_2} {n} pears. ...'`.

    paragraphs: its draws, its question, its program; lists: {name: entries}, tuples of str or int.
    """

    def __init__(self, name, paragraphs, lists):
        self.name = name
        self.lists = lists
        self.lines = ["def text(draws):"]
        self.namespace = {}
        draws, question, program = paragraphs
        for line in joined(draws):
            self.read_draw(line)
        lines = *question.replace("\n    <", "<").split("\n"), "", *program.split("\n")
        text = "\n".join([self.read_text(line) for line in lines])
        exec("\n    ".join([*self.lines, f"return f{text!r}"]), self.namespace)
        self.text = self.namespace["text"]

    def read_draw(self, line):
        """Compile `a, b: ...` or `a = ...`."""
        names, sign, value = re.fullmatch(r"(\w+(?:, \w+)*)(:| =) (.+)", line).groups()
        targets, names = names, names.split(", ")
        if sign == " =":
            self.lines.append(line)
        elif RANGE.fullmatch(value):
            self.lines += [f"{name} = {number(value)}" for name in names]
        elif value.startswith("two of "):
            both = "".join(f"({name},), " for name in names)
            options = self.options(value.removeprefix("two of "), 1)
            self.lines.append(f"{both} = draws.two({options})")
        else:
            options = self.options(self.read_text(value), len(names))
            self.lines.append(f"{targets}, = draws.pick(*{options})")

    def read_text(self, text):
        """Compile what is drawn in a text, inner things first; the text with names for them."""
        about = f"<{'|'.join(sentence for (sentence,) in self.lists['about'])}>"
        text = re.sub(r"<about (.+?)>", lambda who: about.replace("{it}", f"{{{who[1]}}}"), text)
        while drawn := DRAWN.search(text):
            span, options, sentences = drawn.groups()
            if span:
                value = number(span)
            else:
                how = "aside" if sentences else "pick"
                value = f"draws.{how}({strings((sentences or options).split('|'))})"
            name = f"_{len(self.lines)}"
            self.lines.append(f"{name} = {value}")
            text = text.replace(drawn[0], f"{{{name}}}", 1)
        return text

    def options(self, text, parts):
        """Of `read, pages | run, laps`: a tuple of tuples of so many parts, as Python."""
        found = options(text, self.lists, parts)
        if "{" in text:
            return "(" + "".join(f"({strings(option)},), " for option in found) + ")"
        name = f"options_{len(self.lines)}"
        self.namespace[name] = found
        return name


def number(text):
    """The call that draws one of `2..15`."""
    dollar, *bounds = RANGE.fullmatch(text).groups()
    bounds = ", ".join(filter(None, bounds))
    return f"draws.{'price' if dollar else 'number'}({bounds})"


def strings(texts):
    """Arguments, f-strings: what stands in braces is filled in."""
    return ", ".join(f"f{str(text)!r}" for text in texts)


# -- the file --------------------------------------------------------------------------------------
def options(text, lists, parts):
    """`twice, 2 | FRUIT` -> tuples of their parts, split at commas unless parts is 1."""
    found = []
    for option in text.split(" | "):
        split = option.split(", ") if parts > 1 else [option]
        entry = tuple(int(part) if part.isdigit() else part for part in split)
        found += lists.get(option, [entry])
    return found


def joined(text):
    """Lines, each with those after it that begin with spaces."""
    return re.sub(r"\n +", " ", text).split("\n")


def read_lists(text):
    """{name: entries} of lines `FRUIT: ...`; an entry is a tuple of Word, str or int."""
    lists = {}
    for line in filter(None, joined(text)):
        title, _, words = line.partition(": ")
        name, *pronouns = re.findall(r"\w+", title)
        if " | " in words:
            lists[name] = options(words, lists, words.partition(" | ")[0].count(", ") + 1)
        elif pronouns:
            lists[name] = [(person(word, *pronouns),) for word in words.split()]
        else:
            lists[name] = [(thing(*word.split("/")),) for word in words.split()]
    return lists


def read(file):
    """{name: Template}, in the file's order."""
    text = re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    head, *blocks = re.split(r"^== ", text, flags=re.MULTILINE)
    lists = read_lists(head)
    found = {}
    for block in blocks:
        name, _, rest = block.partition("\n")
        found[name] = Template(name, rest.strip("\n").split("\n\n"), lists)
    return found


TEMPLATES = read(FILE)
