"""Configuration as commented globals, overridden by config files and --key=value.

A script sets its keys, in small letters, to literals at the left margin, one to a line, and calls
`configure(globals())` under its main guard. Config files are plain Python. The last value wins.

    tau: float | None = 0.9  # 0..1: reveal all with confidence above this; None = off

A value has the type of its annotation or default and lies in the range that begins the comment
(`1..` has no upper end; a list is checked element by element). An int is accepted as a float, 0 and
1 as a bool, a list as a tuple; strings need no quotes; `--key` alone is True.
"""

import ast
import contextlib
import difflib
import importlib.util
import inspect
import itertools
import os
import re
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple, get_args, get_origin

if importlib.util.find_spec("torch") is None:
    raise SystemExit("this Python has no torch: `source .venv/bin/activate` (see README.md)")
ACCEPTED = {bool: (bool, int), float: (float, int), list: (list, tuple), tuple: (list, tuple)}
LINE = r"^(?:# -- (.+?) -+|([a-z]\w*)(?:: (.+?))? = (.+?)(?:  # (.*))?)$"  # heading, or setting


class Key(NamedTuple):
    default: object
    kinds: tuple  # the types of its values
    elements: tuple  # the types of the elements of a list or tuple; () = any
    comment: str
    section: str


@contextlib.contextmanager
def errors_as_messages(interrupted="interrupted"):
    """Errors from wrong settings or files end the program in one line; so does Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(interrupted) from None
    except (ValueError, OSError, MemoryError) as error:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(10)  # if the first process says it too, torchrun ends this one before
        raise SystemExit(message_of(error) + meant(error)) from None


def message_of(error):
    """Type and text of an exception, on one line."""
    return f"{type(error).__name__}: {printable(str(error))}".removesuffix(": ")


def meant(error):
    """`nearest` for an error of the form "... 'name': expected this, that or other"."""
    name, _, known = str(error).partition("': expected ")
    return nearest(name.rpartition("'")[2], re.findall(r"\w+(?![\w<])", known))


def nearest(name, known, dashes=""):
    """The known name that was probably meant, as the end of a message; "" if none is near."""
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {dashes}{found[0]}?" if found else ""


def printable(text):
    """The text on one line, of at most 300 characters, without terminal control characters."""
    text = text if len(text) <= 300 else f"{text[:300]}..."
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def configure(settings, argv=None, fields=None, lists=False, kept=None):
    """Override the globals `settings` of a script with its arguments; return the final values.

    fields: a NamedTuple whose fields are settings too, in the returned values alone, or a function
    of the script's own values that returns one; lists: each field may be a list; kept: a function
    of these values, as typed, that returns saved values, which flags alone override, and whether
    they are all: config files then count for nothing.
    """
    file = Path(settings["__file__"])
    spec = settings.get("__spec__")
    script = f"python -m {spec.name}" if spec else f"python {file.name}"
    argv = sys.argv[1:] if argv is None else argv
    settings_alone, *_ = re.split("^(?:def|class) ", file.read_text("utf-8"), flags=re.MULTILINE)
    own = read_keys(settings_alone)
    try:
        given = [each for arg in argv if arg not in ("-h", "--help") for each in read(arg)]
        typed = {name: key.default for name, key in own.items()}
        typed |= {name: value for _, name, value in given}
        saved, whole = kept(typed) if kept else ({}, False)
        given = [
            (where, name, value) for where, name, value in given
            if where.startswith("--") or not (whole or name in saved)
        ]  # fmt: skip
        if not isinstance(fields, type | None):
            fields = fields(merged(own, saved, given))
        more = read_fields(fields, lists) if fields else {}
        if twice := own.keys() & more.keys():
            raise ValueError(f"{fields.__module__}: {script} has the settings {sorted(twice)} too")
        keys = own | more
        if "-h" in argv or "--help" in argv:
            print(help_text(script, settings["__doc__"], keys))
            raise SystemExit(0)
        refuse_unknown(keys, given)
        values = merged(keys, saved, given)
    except (ValueError, OSError) as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"{error}{meant(error)}\n`{script} --help` lists all keys", file=sys.stderr)
        raise SystemExit(2) from None
    settings.update({name: values[name] for name in own})
    return values


def merged(keys, saved, given):
    """The values of these keys: as given, else as saved, else the default."""
    values = {name: key.default for name, key in keys.items()}
    for where, name, value in [*((f"saved {name}", name, saved[name]) for name in saved), *given]:
        if name in keys:
            values[name] = checked(where, keys[name], value)
    return values


def refuse_unknown(keys, given):
    for where, name, _ in given:
        if name not in keys:
            hint = nearest(name, keys, dashes="--" * where.startswith("--"))
            raise ValueError(f"{where}: unknown key{hint}")


def help_text(script, doc, keys):
    """The script's docstring, its usage, and every key with its default, section by section."""
    flags = {name: f"--{name}={key.default}" for name, key in keys.items()}
    width = max(map(len, flags.values()))
    lines = [doc.strip(), "", f"usage: {script} [config/FILE.py ...] [--key=value ...]"]
    for section, names in itertools.groupby(keys, key=lambda name: keys[name].section):
        lines += ["", section]
        lines += [f"  {flags[name]:{width}}  {keys[name].comment}".rstrip() for name in names]
    return "\n".join(lines)


def read_fields(fields, lists=False):
    """The fields of a NamedTuple class as keys; lists: each may be a list of values."""
    task = fields.__module__.rpartition(".")[2]  # or the script itself
    section = fields.__name__.lower().replace("settings", f"{task} settings")
    source = inspect.getsource(fields).replace("\n    ", "\n")
    keys = read_keys(source, section + " (each may be a list)" * lists)
    for name, key in keys.items():
        if lists:
            keys[name] = key._replace(kinds=(*key.kinds, list), elements=key.kinds)
    return keys


def read_keys(source, section=""):
    """{name: Key} of a script's lines `name = literal  # comment`, in their order."""
    keys = {}
    for heading, name, annotation, value, comment in re.findall(LINE, source, re.MULTILINE):
        section = heading or section
        with contextlib.suppress(ValueError, SyntaxError):  # a heading, a call, arithmetic
            default = ast.literal_eval(value)
            keys[name] = Key(default, *kinds_of(default, annotation), comment, section)
    return keys


def kinds_of(default, annotation):
    """The types of a key and of its elements: () if they are lists or unknown."""
    kind = eval(annotation, {}) if annotation else type(default)
    if get_origin(kind) is list:
        return (list,), get_args(kind)
    elements = {*map(type, default)} if isinstance(default, list | tuple) else set()
    return get_args(kind) or (kind,), tuple(elements & {int, float, str})


def read(arg):
    """[(where, name, value)] of one argument: --key=value, or a config file."""
    if flag := re.fullmatch(r"--(\w+)(?:=(.*))?", arg, re.DOTALL):
        return [(printable(arg), flag[1], True if flag[2] is None else flag[2])]
    return [
        (f"{arg}: {name}", name, value) for name, value in execute(arg).items()
        if name[0] != "_" and not hasattr(value, "__name__")  # an import, a function or a class
    ]  # fmt: skip


def execute(file):
    """The namespace after running a file. Raises ValueError naming the file and the line."""
    if not Path(file).is_file():
        raise ValueError(f"no config file {printable(file)!r}; write settings as --key=value")
    namespace = {"__name__": Path(file).stem, "__file__": file}
    try:
        exec(compile(Path(file).read_bytes(), file, "exec"), namespace)
    except BaseException as error:  # a file may also exit, or be interrupted
        raise ValueError(f"{place_of(error, file)}: {message_of(error)}") from None
    return namespace


def place_of(error, file):
    """File and line of an error in a file, or in one beside it that it imports."""
    folder = Path(file).absolute().parent.name
    frames = traceback.extract_tb(error.__traceback__)
    beside = [frame for frame in frames if Path(frame.filename).parent.name == folder]
    return f"{beside[-1].filename}, line {beside[-1].lineno}" if beside else file


def checked(where, key, value):
    """The value as the first of the key's types that takes it. Raises ValueError if none does."""
    is_text = str in key.kinds and (list not in key.kinds or str(value)[:1] not in ("[", "("))
    with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        if where.startswith("--") and not is_text:
            value = ast.literal_eval(value.title() if value in ("true", "false", "none") else value)
    if key.elements and isinstance(value, list | tuple):
        element = key._replace(kinds=key.elements, elements=())
        value = [checked(where, element, part) for part in value]
    low, high = re.match(r"(?:([-\d.e]+)\.\.([-\d.e]*)(?::|$))?", key.comment).groups("")
    least, most = (0, 1) if bool in key.kinds else (float(low or -1e308), float(high or 1e308))
    fits = not isinstance(value, int | float) or least <= value <= most
    if isinstance(key.default, tuple) and isinstance(value, list):
        fits = len(value) == len(key.default)
    for kind in key.kinds:
        if fits and type(value) in ACCEPTED.get(kind, (kind,)):
            return None if value is None else kind(value)
    got = f"{printable(repr(value))}; the default is {key.default!r}"
    raise ValueError(
        f"{where}: expected {described(key.kinds, key.elements, low, high)}, got {got}"
    )


def described(kinds, elements, low, high):
    """The types and the range in words: an int or None from 1 to 9, a list of str."""
    names = " or ".join(kind.__name__ for kind in kinds).replace("NoneType", "None")
    names += "".join(f" of {kind.__name__}" for kind in elements[:1])
    limits = f" from {low}" * bool(low) + f" to {high}" * bool(high)
    return f"{'an' if names.startswith('int') else 'a'} {names}{limits}"
