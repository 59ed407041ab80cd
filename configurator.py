"""Configuration as commented globals, overridden by config files and --key=value.

A script lists its settings at its top and calls `configure(globals())` under its main guard.
A key is a public name that the script sets to a literal at top level, above its first function
or class; names in capitals are constants. Config files (`python train.py config/sudoku.py
--tau=0.8`) are plain Python, run in order, each in a namespace of its own; `from config.sudoku
import *` builds one on another. Later wins. A value has the type of its default or, where there is
one, of its annotation, as in `tau: float | None = 0.9`: an int serves as a float, 0 and 1 as a
bool, a list as a tuple and back; strings take the text as it stands; `--key` alone sets a bool.
Unknown keys and wrong types fail, in files too. The elements of a list are not checked; the range
of a number is the business of the code that takes it (`at_least` for the commonest).
Fields of a NamedTuple with defaults can be settings, too: `configure(globals(), fields=Sampler)`.
"""

import ast
import contextlib
import difflib
import inspect
import io
import itertools
import sys
import textwrap
import tokenize
import traceback
from pathlib import Path
from types import ModuleType, NoneType
from typing import NamedTuple

ACCEPTED = {  # type of the default -> types of a value
    bool: (bool, int), int: (int,), float: (float, int), str: (str,),
    list: (list, tuple), tuple: (list, tuple), NoneType: (NoneType,),
}  # fmt: skip
WORDS = {"true": True, "false": False, "none": None}  # "false" as a string would count as true


class ConfigError(Exception):
    """A mistake of the user, shown without a traceback."""


class Key(NamedTuple):
    default: object
    kinds: tuple  # of types
    comment: str
    section: str


@contextlib.contextmanager
def errors_as_messages():
    """For set-up: what a wrong setting or file raises is shown as one line, not a traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None


def at_least(least, **settings):
    """Raise ValueError that names a setting that is smaller."""
    for name, value in settings.items():
        if value < least:
            raise ValueError(f"{name} {value}: expected at least {least}")


def configure(settings, argv=None, fields=None, lists=False):
    """Override the globals `settings` of a script by its arguments; return the final values.

    fields: a NamedTuple class whose fields are settings as well, in the values returned alone;
    lists: each of them may be given as a list of values.
    """
    argv = sys.argv[1:] if argv is None else argv
    keys = read_keys(Path(settings["__file__"]).read_text(encoding="utf-8"))
    more = read_fields(fields, lists) if fields else {}
    values = {name: settings[name] for name in keys} | {name: more[name].default for name in more}
    keys |= more
    if "-h" in argv or "--help" in argv:
        print(help_text(command(settings), settings["__doc__"], keys))
        raise SystemExit(0)
    try:
        for arg in argv:
            values |= read_flag(arg, keys) if arg.startswith("-") else read_file(arg, keys)
    except ConfigError as error:
        print(f"{error}\n`python {command(settings)} --help` lists all keys", file=sys.stderr)
        raise SystemExit(2) from None
    settings.update({name: value for name, value in values.items() if name not in more})
    return values


def command(settings):
    """What follows `python` to run the script: `train.py`, or `-m studies.plot`."""
    spec = settings.get("__spec__")
    if spec:
        return f"-m {spec.name}"
    script, root = Path(settings["__file__"]).resolve(), Path(__file__).resolve().parent
    return str(script.relative_to(root)) if script.is_relative_to(root) else script.name


def read_keys(source):
    """The keys of a script, {name: Key}, in the order of its source."""
    return keys_in(ast.parse(source).body, source)


def read_fields(fields, lists):
    """The fields of a NamedTuple class as keys."""
    source = textwrap.dedent(inspect.getsource(fields))
    keys = keys_in(ast.parse(source).body[0].body, source)
    section = fields.__name__.lower() + (" (each may be a list)" if lists else "")
    also = (list, tuple) if lists else ()
    return {n: key._replace(kinds=key.kinds + also, section=section) for n, key in keys.items()}


def keys_in(statements, source):
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    headings = {line: text.strip("- ") for line, text in comments.items() if text[:3] == "-- "}
    keys = {}
    for node in statements:
        section = [""] + [text for line, text in headings.items() if line < node.lineno]
        beside = [comments.get(line, "") for line in range(node.lineno, node.end_lineno + 1)]
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                break
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name))
            ) if name[0] != "_" and not name.isupper() and literal(node.value):
                default = ast.literal_eval(node.value)
                kinds = annotated(node) or (type(default),)
                keys[name] = Key(default, kinds, " ".join(beside).strip(), section[-1])
    return keys


def annotated(node):
    """The types that an annotation like `float | None` names; none where there is no annotation."""
    names = ast.unparse(node.annotation).split(" | ") if isinstance(node, ast.AnnAssign) else []
    return tuple(kind for name in names for kind in ACCEPTED if type_name(kind) == name)


def type_name(kind):
    return "None" if kind is NoneType else kind.__name__


def literal(node):
    try:
        return type(ast.literal_eval(node)) in ACCEPTED
    except ValueError:  # a call, a name, arithmetic
        return False


def read_flag(arg, keys):
    """{name: value} of one --key=value."""
    name, equals, text = arg.removeprefix("--").partition("=")
    if arg.startswith("--") and not equals and name in keys and keys[name].kinds == (bool,):
        return {name: True}
    if not arg.startswith("--") or not equals:
        raise ConfigError(f"cannot read {arg}: write --key=value, with two dashes and no space")
    if name not in keys:
        raise ConfigError(unknown("--", name, keys))
    is_list = list in keys[name].kinds and text[:1] in ("[", "(")
    value = text if isinstance(keys[name].default, str) and not is_list else parse(text)
    return {name: checked(arg, keys[name], value)}


def parse(text):
    """The literal that the text spells, or else the text."""
    try:
        return WORDS[text] if text in WORDS else ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return text


def read_file(file, keys):
    """{name: value} of everything public that a config file leaves behind."""
    found = {}
    for name, value in execute(file).items():
        if name in keys:
            found[name] = checked(f"{file}: {name}", keys[name], value)
        elif not (name.startswith("_") or isinstance(value, ModuleType) or callable(value)):
            raise ConfigError(f"{file}: {unknown('', name, keys)}")
    return found


def execute(file):
    """The namespace that a config file leaves; its errors name the file and the line."""
    if not Path(file).is_file():
        raise ConfigError(f"no config file {file!r}")
    namespace = {"__name__": Path(file).stem, "__file__": file}
    try:
        exec(compile(Path(file).read_bytes(), file, "exec"), namespace)
    except Exception as error:  # the innermost frame may be that of a file it imports
        frames = traceback.extract_tb(error.__traceback__)
        at = error if isinstance(error, SyntaxError) else frames[-1]
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{at.filename}, line {at.lineno}: {reason}") from None
    return namespace


def unknown(dashes, name, keys):
    """The message for an unknown key, with the nearest known one where one is near."""
    nearest = difflib.get_close_matches(name, keys, n=1)
    hint = f"; did you mean {dashes}{nearest[0]}?" if nearest else ""
    return f"unknown key {dashes}{name}{hint}"


def checked(where, key, value):
    """The value, in the first of the key's types that takes it."""
    for kind in key.kinds:
        if type(value) in ACCEPTED[kind] and (kind is not bool or value in (0, 1)):
            return None if value is None else kind(value)
    article = "an" if key.kinds[0] is int else "a"
    expected = f"{article} {' or '.join(map(type_name, key.kinds))} (like {key.default!r})"
    got = "None" if value is None else f"the {type(value).__name__} {value!r}"
    raise ConfigError(f"{where}: expected {expected}, got {got}")


def help_text(script, doc, keys):
    """The script's docstring, the usage and every key with its default, section by section."""
    usage = f"usage: python {script} [config/FILE.py ...] [--key=value ...]"
    flags = {name: f"--{name}={key.default}" for name, key in keys.items()}
    width = max(map(len, flags.values()), default=0)
    lines = [(doc or "").strip(), "", usage]
    for section, names in itertools.groupby(keys, key=lambda name: keys[name].section):
        lines += ["", section]
        lines += [f"  {flags[name]:{width}}  {keys[name].comment}".rstrip() for name in names]
    return "\n".join(lines)
