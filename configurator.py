"""Configuration as commented globals, overridden by config files and --key=value.

A script lists its settings at the top and calls `configure(globals())` under its main guard.
A key is a public name that the script sets to a literal at top level, above its first function
or class; names in capitals are constants. Config files (`python train.py config/sudoku.py
--tau=0.8`) are plain Python, run in order, each in its own namespace; `from config.sudoku import *`
builds one on another. The last value wins. A value has the type of its default or of its
annotation, as in `tau: float | None = 0.9`: an int is accepted as a float, 0 and 1 as a bool, a
list as a tuple and vice versa; strings are taken literally; `--key` alone sets a bool to True.
Floats must be finite. The elements of a list have the type of those of its default, or that of its
annotation (`list[str]`), and a tuple has as many as its default. Unknown keys and wrong types fail,
in files too.

The valid values are in LIMITS, a table below the settings with one rule per line (`check_limits`):

    0 <= min_lr <= lr    # equal for a constant rate

A NamedTuple's fields with defaults can be settings too: `configure(globals(), fields=Sampler)`.
"""

import ast
import contextlib
import difflib
import inspect
import io
import itertools
import math
import re
import sys
import sysconfig
import textwrap
import tokenize
import traceback
from pathlib import Path
from types import ModuleType, NoneType
from typing import NamedTuple

ACCEPTED = {  # type of the default -> accepted types of a value
    bool: (bool, int), int: (int,), float: (float, int), str: (str,),
    list: (list, tuple), tuple: (list, tuple), NoneType: (NoneType,),
}  # fmt: skip
WORDS = {"true": True, "false": False, "none": None}  # "false" as a string would count as true
LONGEST = 300  # characters of a value or a reason in a message


class ConfigError(Exception):
    """A user's mistake, shown without a traceback."""


class Key(NamedTuple):
    default: object
    kinds: tuple  # of types
    comment: str
    section: str
    elements: tuple  # types of the elements of a list; () = any


@contextlib.contextmanager
def errors_as_messages(interrupted="interrupted"):
    """For set-up: errors from wrong settings or files are shown as one line, not a traceback.

    interrupted: what Ctrl-C shows.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(interrupted) from None
    except (ValueError, OSError, MemoryError) as error:
        raise SystemExit(message_of(error)) from None
    except RuntimeError as error:  # torch's for impossible sizes; others are bugs
        if not any(word in str(error) for word in ("memory", "overflow")):
            raise
        raise SystemExit(f"these sizes do not fit into memory: {message_of(error)}") from None


def message_of(error):
    """Type and text of an exception, on one line."""
    return f"{type(error).__name__}: {printable(str(error))}".removesuffix(": ")


def printable(text):
    """The text on one line, of at most LONGEST characters, without terminal control characters."""
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def shown(value):
    """A setting's value, for a message."""
    try:
        return printable(repr(value))
    except (ValueError, RecursionError):  # thousands of digits, or a list that contains itself
        return f"a huge {type(value).__name__}"


def check_limits(limits, values):
    """Raise ValueError for the first rule that the values {name: value} break.

    limits: a rule per line, a Python expression of names; after # a remedy or reason. A list is
    checked element by element. A rule does not apply if one of its values is None.
    """
    for line in filter(None, map(str.strip, limits.splitlines())):
        rule, _, remedy = (part.strip() for part in line.partition("#"))
        used = {name: values[name] for name in names_in(rule) if name in values}
        lists = [each if isinstance(each, list | tuple) else [each] for each in used.values()]
        for case in itertools.product(*lists):
            if None not in case and not holds(rule, dict(zip(used, case, strict=True))):
                found = ", ".join(f"{name} {shown(value)}" for name, value in used.items())
                raise ValueError(f"{found}: expected {rule}" + (remedy and f" ({remedy})"))


def names_in(rule):
    """The names in an expression, in order."""
    names = [node for node in ast.walk(ast.parse(rule)) if isinstance(node, ast.Name)]
    return [node.id for node in sorted(names, key=lambda node: node.col_offset)]


def holds(rule, values):
    """Whether a rule of LIMITS holds; it fails if it cannot be computed, as with a string."""
    try:
        return bool(eval(rule, {"__builtins__": {}}, values))
    except (TypeError, ArithmeticError):
        return False


def check_saved(script, values):
    """Raise ValueError if saved values {name: value} are not valid for the script.

    Settings that the script does not have, and missing ones, are ignored.
    """
    source = (Path(__file__).parent / script).read_text(encoding="utf-8")
    keys = read_keys(source)
    limits = re.search('^LIMITS = """(.*?)"""', source, re.DOTALL | re.MULTILINE)[1]
    known = {name: value for name, value in values.items() if name in keys}
    try:
        for name, value in known.items():
            checked(f"the saved {name}", keys[name], value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    check_limits(limits, {name: key.default for name, key in keys.items()} | known)


def configure(settings, argv=None, fields=None, lists=False):
    """Override the globals `settings` of a script with its arguments; return the final values.

    fields: a NamedTuple class whose fields are settings too, only in the returned values;
    lists: each of these may be a list of values. The values are checked against the LIMITS of the
    script and of `fields`, if there are any.
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
        check_limits(settings.get("LIMITS", ""), values)
        check_limits(getattr(fields, "LIMITS", ""), values)
    except (ConfigError, ValueError) as error:
        print(f"{error}\n`python {command(settings)} --help` lists all keys", file=sys.stderr)
        raise SystemExit(2) from None
    settings.update({name: value for name, value in values.items() if name not in more})
    return values


def command(settings):
    """What follows `python` on the command line: `train.py`, or `-m studies.plot`."""
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
    keys = {name: key._replace(section=section) for name, key in keys.items()}
    if not lists:
        return keys
    return {
        name: key._replace(kinds=(*key.kinds, list, tuple), elements=key.kinds)
        for name, key in keys.items()
    }


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
                comment, elements = " ".join(beside).strip(), elements_of(node, default)
                keys[name] = Key(default, kinds, comment, section[-1], elements)
    return keys


def elements_of(node, default):
    """Types of a list's elements: from its annotation, like `list[str]`, or from its default."""
    match getattr(node, "annotation", None):
        case ast.Subscript(slice=element):
            return tuple(kind for kind in ACCEPTED if type_name(kind) == ast.unparse(element))
    kinds = {type(each) for each in default} if isinstance(default, list | tuple) else set()
    return tuple(kinds) if kinds <= {int, float, str} else ()


def annotated(node):
    """The types that an annotation like `float | None` names; () without an annotation."""
    names = ast.unparse(node.annotation).split(" | ") if isinstance(node, ast.AnnAssign) else []
    names = [name.partition("[")[0] for name in names]
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
        what = printable(arg)
        raise ConfigError(f"cannot read {what}: write --key=value, with two dashes and no space")
    if name not in keys:
        raise ConfigError(unknown("--", name, keys))
    is_list = list in keys[name].kinds and text[:1] in ("[", "(")
    value = text if isinstance(keys[name].default, str) and not is_list else parse(text)
    return {name: checked(printable(arg), keys[name], value)}


def parse(text):
    """The literal that the text spells, otherwise the text itself."""
    try:
        return WORDS[text] if text in WORDS else ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # or nested too deep
        return text


def read_file(file, keys):
    """{name: value} of everything public that a config file sets."""
    found = {}
    for name, value in execute(file).items():
        if name in keys:
            found[name] = checked(f"{file}: {name}", keys[name], value)
        elif not (name.startswith("_") or isinstance(value, ModuleType) or callable(value)):
            raise ConfigError(f"{file}: {unknown('', name, keys)}")
    return found


def execute(file):
    """The namespace after running a config file; errors name the file and the line."""
    if not Path(file).is_file():
        raise ConfigError(f"no config file {shown(file)}; write settings as --key=value")
    namespace = {"__name__": Path(file).stem, "__file__": file}
    try:
        exec(compile(Path(file).read_bytes(), file, "exec"), namespace)
    except BaseException as error:  # a file may also exit, or be interrupted
        raise ConfigError(f"{place_of(error, file)}: {message_of(error)}") from None
    return namespace


def place_of(error, file):
    """File and line of an error in a config file, or in one that it imports."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    libraries = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is `execute`
    own = [f for f in frames if not f.filename.startswith((*libraries, "<frozen"))]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else file


def unknown(dashes, name, keys):
    """The message for an unknown key, with the closest known one if there is one."""
    nearest = difflib.get_close_matches(name, keys, n=1)
    hint = f"; did you mean {dashes}{nearest[0]}?" if nearest else ""
    return f"unknown key {dashes}{printable(name)}{hint}"


def checked(where, key, value):
    """The value, converted to the first of the key's types that accepts it; elements likewise."""
    try:
        repr(value)  # fails for a list that contains itself or an int of thousands of digits
        found = converted(value, key.kinds)
        if isinstance(found, list | tuple) and key.elements:
            found = type(found)(converted(each, key.elements) for each in found)
        if isinstance(key.default, tuple) and len(found) != len(key.default):
            raise TypeError
    except (TypeError, ValueError, RecursionError):
        got = "None" if value is None else f"the {type(value).__name__} {shown(value)}"
        raise ConfigError(f"{where}: expected {expected(key)}, got {got}") from None
    return found


def converted(value, kinds):
    """The value in one of these types. Raises TypeError if none accepts it, or it is not finite."""
    for kind in kinds:
        if type(value) in ACCEPTED[kind] and (kind is not bool or value in (0, 1)):
            try:
                found = None if value is None else kind(value)
            except OverflowError:  # an int beyond all floats
                raise TypeError from None
            if kind is float and not math.isfinite(found):
                raise TypeError
            return found
    raise TypeError


def expected(key):
    """What a key takes, in words."""
    words = " or ".join(map(type_name, key.kinds))
    if key.elements and key.kinds[0] in (list, tuple):
        count = f" {len(key.default)}" if isinstance(key.default, tuple) else ""
        words += f" of{count} {' or '.join(map(type_name, key.elements))}"
    return f"{'an' if key.kinds[0] is int else 'a'} {words} (like {key.default!r})"


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
