"""Configuration as commented globals, overridden by config files and --key=value.

A script lists its settings at the top and calls `configure(globals())` under its main guard.
A key is a public name that it sets to a literal above its first function or class; names in
capitals are constants. Config files (`python train.py config/sudoku.py --tau=0.8`) are plain
Python, run in order; `from config.sudoku import *` builds one on another. The last value wins.

    tau: float | None = 0.9  # 0..1: reveal all with confidence above this; None = off

A value has the type of its default or annotation, and lies in the range that begins the comment
(`1..` has no upper end; of a list or tuple each element does). An int is accepted as a float, 0 and
1 as a bool, a list as a tuple; strings are taken literally; `--key` alone is True; floats are
finite. Unknown keys and wrong values fail, in files too. The fields of a NamedTuple can be settings
as well: `configure(globals(), fields=Sampler)`.
"""

import ast
import contextlib
import difflib
import importlib.util
import inspect
import io
import itertools
import math
import re
import sys
import textwrap
import tokenize
import traceback
from pathlib import Path
from types import ModuleType, NoneType
from typing import NamedTuple, get_args, get_origin

if importlib.util.find_spec("torch") is None:
    raise SystemExit("this Python has no torch: `source .venv/bin/activate` (see README.md)")
ACCEPTED = {  # type of a key -> types of the values it takes
    bool: (bool, int), int: (int,), float: (float, int), str: (str,),
    list: (list, tuple), tuple: (list, tuple), NoneType: (NoneType,),
}  # fmt: skip
WORDS = {"true": True, "false": False, "none": None}  # "false" as a string would count as true
LONGEST = 300  # characters of a value or a reason in a message


class Key(NamedTuple):
    default: object
    kinds: tuple  # of types
    elements: tuple  # types of the elements of a list; () = any
    comment: str
    section: str

    def range(self):
        """(lowest, highest) of the numbers, from the comment."""
        low, high = re.match(r"(?:([-\d.e]*)\.\.([-\d.e]*)(?:: |$))?", self.comment).groups()
        return float(low or -math.inf), float(high or math.inf)


class Text(str):
    """What follows --key=, still to be read as the key's type."""


# -- messages --------------------------------------------------------------------------------------
@contextlib.contextmanager
def errors_as_messages(interrupted="interrupted"):
    """Errors from wrong settings or files end the program in one line; so does Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(interrupted) from None
    except (ValueError, OSError, MemoryError) as error:
        raise SystemExit(message_of(error)) from None


def message_of(error):
    """Type and text of an exception, on one line."""
    return f"{type(error).__name__}: {printable(str(error))}".removesuffix(": ")


def printable(text):
    """The text on one line, of at most LONGEST characters, without terminal control characters."""
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


# -- the settings of a script ----------------------------------------------------------------------
def configure(settings, argv=None, fields=None, lists=False, kept=None):
    """Override the globals `settings` of a script with its arguments; return the final values.

    fields: a NamedTuple class whose fields are settings too, only in the returned values, or a
    function of the script's own values that returns one, or None; lists: each field may be a list;
    kept: a function of these values that returns those of a saved run, which only flags override.
    """
    argv = sys.argv[1:] if argv is None else argv
    helps = {"-h", "--help"} & {*argv}
    own = read_keys(Path(settings["__file__"]).read_text(encoding="utf-8"))
    values = {name: settings[name] for name in own}
    spec, script = settings.get("__spec__"), Path(settings["__file__"]).name
    script = f"-m {spec.name}" if spec else script
    try:
        given = [triple for arg in argv if arg not in helps for triple in read(arg)]
        typed = {name: value for _, name, value in given if name in own}
        if saved := kept(values | typed) if kept else {}:
            given = [triple for triple in given if triple[0].startswith("--")]
            typed = saved | {name: value for _, name, value in given}
        if not isinstance(fields, type | None):
            fields = fields(values | {name: typed[name] for name in own.keys() & typed})
        more = read_fields(fields, lists) if fields else {}
        if helps:
            print(help_text(script, settings["__doc__"], own | more))
            raise SystemExit(0)
        values |= {name: key.default for name, key in more.items()}
        values |= {name: saved[name] for name in values.keys() & saved}
        for where, name, value in given:
            values[name] = checked(where, find(own | more, where, name), value)
    except ValueError as error:
        print(f"{error}\n`python {script} --help` lists all keys", file=sys.stderr)
        raise SystemExit(2) from None
    settings.update({name: values[name] for name in own})
    return values


def read_fields(fields, lists=False):
    """The fields of a NamedTuple class as keys; lists: each may be a list of values."""
    source = textwrap.dedent(inspect.getsource(fields))
    section = fields.__module__.rpartition(".")[2] + " " + fields.__name__.lower()
    keys = read_keys(source, ast.parse(source).body[0].body)
    for name, key in keys.items():
        if lists:
            key = key._replace(kinds=(*key.kinds, list, tuple), elements=key.kinds)
        keys[name] = key._replace(section=section + " (each may be a list)" * lists)
    return keys


def read_keys(source, statements=None):
    """The keys of a script, {name: Key}, in the order of its source."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    headings = {line: text.strip("- ") for line, text in comments.items() if text[:3] == "-- "}
    keys = {}
    for node in statements or ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            break
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        name = getattr(target, "id", "_")
        with contextlib.suppress(ValueError):  # a call, a name, arithmetic: no literal
            if name[0] != "_" and not name.isupper():
                beside = (
                    comments.get(line, "") for line in range(node.lineno, node.end_lineno + 1)
                )
                above = [""] + [text for line, text in headings.items() if line < node.lineno]
                keys[name] = Key(*form_of(node), " ".join(beside).strip(), above[-1])
    return keys


def form_of(node):
    """The default of an assignment, its types and those of its elements."""
    default = ast.literal_eval(node.value)
    kinds = {*map(type, default)} if isinstance(default, list | tuple) else set()
    elements = tuple(kinds & {int, float, str})
    if isinstance(node, ast.AnnAssign):
        kind = eval(ast.unparse(node.annotation), {})  # float | None, list[str]
        if get_origin(kind) is list:
            return default, (list,), get_args(kind)
        return default, get_args(kind) or (kind,), elements
    return default, (type(default),), elements


def find(keys, where, name):
    if name in keys:
        return keys[name]
    nearest, dashes = difflib.get_close_matches(name, keys, n=1), "--" * where.startswith("--")
    file = "" if dashes else where.removesuffix(name)
    hint = f"; did you mean {dashes}{nearest[0]}?" if nearest else ""
    raise ValueError(f"{file}unknown key {dashes}{printable(name)}{hint}")


def help_text(script, doc, keys):
    """The script's docstring, its usage, and every key with its default, section by section."""
    usage = f"usage: python {script} [config/FILE.py ...] [--key=value ...]"
    flags = {name: f"--{name}={key.default}" for name, key in keys.items()}
    width = max(map(len, flags.values()), default=0)
    lines = [(doc or "").strip(), "", usage]
    for section, names in itertools.groupby(keys, key=lambda name: keys[name].section):
        lines += ["", section]
        lines += [f"  {flags[name]:{width}}  {keys[name].comment}".rstrip() for name in names]
    return "\n".join(lines)


# -- arguments -------------------------------------------------------------------------------------
def read(arg):
    """[(where, name, value)] of one argument: a config file, or --key=value."""
    if not arg.startswith("-"):
        return read_file(arg)
    name, equals, text = arg.removeprefix("--").partition("=")
    if not arg.startswith("--") or not name.isidentifier():
        raise ValueError(f"cannot read {printable(arg)}: write --key=value, with two dashes")
    return [(printable(arg), name, Text(text) if equals else True)]


def read_file(file):
    return [
        (f"{file}: {name}", name, value) for name, value in execute(file).items()
        if not (name.startswith("_") or isinstance(value, ModuleType) or callable(value))
    ]  # fmt: skip


def execute(file):
    """The namespace after running a file. Raises ValueError naming the file and the line."""
    if not Path(file).is_file():
        raise ValueError(f"no config file {file!r}; write settings as --key=value")
    namespace = {"__name__": Path(file).stem, "__file__": file}
    try:
        exec(compile(Path(file).read_bytes(), file, "exec"), namespace)
    except BaseException as error:  # a file may also exit, or be interrupted
        raise ValueError(f"{place_of(error, file)}: {message_of(error)}") from None
    return namespace


def place_of(error, file):
    """File and line of an error in a file, or in one beside it that it imports."""
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    beside = [at for at in frames if Path(at[0]).parent.name == Path(file).absolute().parent.name]
    return "{}, line {}".format(*beside[-1]) if beside else file


def checked(where, key, value):
    """The value in the first of the key's types that accepts it; elements likewise."""
    if isinstance(value, Text):
        is_list = list in key.kinds and value[:1] in ("[", "(")
        value = str(value) if isinstance(key.default, str) and not is_list else parse(str(value))
    low, high = key.range()
    try:
        final = converted(value, key.kinds)
        parts = [final]
        if isinstance(final, list | tuple):
            if key.elements:
                final = type(final)(converted(part, key.elements) for part in final)
            if isinstance(key.default, tuple) and len(final) != len(key.default):
                raise TypeError
            parts = final
        if not all(low <= part <= high for part in parts if isinstance(part, int | float)):
            raise TypeError
    except (TypeError, ValueError, OverflowError):
        got = "None" if value is None else f"the {type(value).__name__} {printable(repr(value))}"
        raise ValueError(f"{where}: expected {expected(key)}, got {got}") from None
    return final


def parse(text):
    try:
        return WORDS[text] if text in WORDS else ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # or nested too deep
        return text


def converted(value, kinds):
    """The value in one of these types. Raises TypeError if none accepts it, or it is not finite."""
    for kind in kinds:
        if type(value) in ACCEPTED[kind] and (kind is not bool or value in (0, 1)):
            final = None if value is None else kind(value)
            if kind is float and not math.isfinite(final):
                raise TypeError
            return final
    raise TypeError


def expected(key):
    names = [kind.__name__.replace("NoneType", "None") for kind in key.kinds]
    of = f" of {' or '.join(kind.__name__ for kind in key.elements)}" if key.elements else ""
    ends = [f"{end:g}" for end in key.range() if math.isfinite(end)]
    limits = f" from {' to '.join(ends)}" if ends else ""
    article = "an" if names[0] == "int" else "a"
    return f"{article} {' or '.join(names)}{of}{limits} (like {key.default!r})"
