"""Speed on this machine: absolute numbers, and ratios of things measured in turn.

    python bench.py
    python bench.py --parts='["text_step"]' --rows=32 --mode=puma > bench.jsonl

step, text_step      training steps of PUMA and of the baseline (random masks, as many hidden), at
                     the paper's Sudoku shape and at that of its text model (125M parameters)
stages, text_stages  steps of PUMA with few to many stages per chain, at the same shapes
sample               solving 9x9 puzzles of about 24 clues, 2 cells per step
attention            a step with the fused CPU kernel and with plain products (on a CPU only)

Prints a JSON line for the machine, one per measurement and one per ratio, each as soon as it is
known; at the end, everything as tables on stderr. Things that are compared run in turn, since
absolute speed drifts with the machine, and each in its own process, for its peak memory: on CUDA
that of its tensors, elsewhere that of the whole process. Numbers are medians over steps; `from` and
`to` are the extreme rounds. The model is untrained: it is confident of nothing, so no chain jumps.

`reference` is a conventional implementation in float32 on a CPU; on other devices it is left out.
You can name another one: a module that takes the same flags and prints a JSON line with `seconds`,
`sequences_per_second` and `peak_gb`.

tflop_per_second counts matrix products. For T tokens in rows of L and n scored positions, a forward
pass has (and a training step three times as many)

    2 N T                 in the layers, whose matrices have N weights
    4 layers L T dim      in attention: scores, and weighted values
    2 n V dim             in the head; n: all positions (Sudoku), the hidden ones (text, sampling)

and `share_of_matrix_rate` divides this by the rate of large products in the same dtype, measured in
turn with the steps. On CUDA also, per step: `host_ms` until the host has launched everything (with
its waits for the device), `device_ms` of kernels and copies, and their number, `launches`.
"""

import contextlib
import functools
import itertools
import json
import math
import multiprocessing
import platform
import re
import signal
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import model as transformer
import policies
from configurator import configure, errors_as_messages
from data.sudoku.generate import make_puzzles
from engine import machine, processes
from engine.files import progress_bar
from engine.log import origin
from engine.queue import ExampleQueue
from engine.results import table
from losses import DENSE, ChunkedObjective, Objective
from model import Transformer
from puma import ProgressiveUnmasking, RandomMasking, choose_random, stages_of
from sample import Sampler, generate

# -- what ----------------------------------------------------------------------------------------
parts = ["step", "stages", "sample", "attention", "text_step"]
mode = "compare"  # for step and text_step: puma, mdm, or compare both
reference = "studies.conventional"  # the module to compare with; "" = none
rows: int | None = None  # per batch; None = 32 (Sudoku), 2 (text)
k: int | None = None  # K of the chains, except in stages; None = 10 (Sudoku), 42 (text)
rounds = 5  # how many turns each gets
# -- system --------------------------------------------------------------------------------------
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32; "" = chosen by the hardware
compile: bool | None = None  # True or False; None = if there is a compiler

LIMITS = """
    1 <= rows <= 10**6
    1 <= k <= 10**6
    1 <= rounds <= 10**6
"""
MODES = {"compare": ["puma", "mdm"], "puma": ["puma"], "mdm": ["mdm"]}
STEPS = 8  # per round, at least
LARGE = 2048, 8192  # sizes of the products that measure the machine: on a CPU, elsewhere
GIB, TERA = 2**30, 1e12
PROCESSES = multiprocessing.get_context("spawn")


class Shape(NamedTuple):
    """A model and its rows; `words` is the vocabulary, with the mask last. box: of a Sudoku."""

    words: int
    length: int
    dim: int
    layers: int
    heads: int
    mlp: int
    tied: bool
    rows: int
    K: int
    Ks: tuple  # for the parts on stages
    buffer: int  # least batches of chains held
    warmup: int  # uncounted steps at the start
    theirs: tuple  # the reference's flags for a step
    prompt: int = 0
    box: tuple | None = None


SHAPES = {
    "sudoku": Shape(
        10, 81, dim=256, layers=8, heads=8, mlp=768, tied=False, rows=32, K=10, Ks=(20, 10, 5, 2),
        buffer=8, warmup=10, theirs=("--shape=sudoku", "--steps=8"), box=(3, 3),
    ),
    "text": Shape(
        151_645, 512, dim=512, layers=14, heads=8, mlp=1536, tied=True, rows=2, K=42,
        Ks=(128, 64, 32, 12), buffer=1, warmup=2, theirs=("--shape=tinygsm",), prompt=100,
    ),
}  # fmt: skip


class Setting(NamedTuple):
    """The settings of one measuring process."""

    shape: Shape
    data: object
    method: str  # of STREAMS
    K: int
    rows: int
    batches: int  # of chains held
    short: int  # up to this length, attention on a CPU is plain products
    device: str
    dtype: str
    compile: bool | None


def main():
    with errors_as_messages():
        check()
        _, _, where = processes.start(device)
    print(json.dumps(machine(where) | origin()), flush=True)
    lines = []
    try:
        for part in parts:
            for line in PARTS[part](where):
                lines.append({"part": part} | line)
                print(json.dumps(lines[-1]), flush=True)
    except KeyboardInterrupt:
        raise SystemExit("interrupted") from None
    finally:  # what is finished
        print(markdown(lines), file=sys.stderr)


def check():
    """Raise ValueError for invalid settings."""
    if not parts:
        raise ValueError(f"parts is empty: expected some of {', '.join(PARTS)}")
    if strange := [part for part in parts if part not in PARTS]:
        raise ValueError(f"parts {strange}: expected {', '.join(PARTS)}")
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: expected {', '.join(MODES)}")
    if reference and not is_module(reference):
        raise ValueError(f"reference {reference!r}: expected a module, like studies.conventional")
    machine.precision(torch.device("cpu"), dtype)


def is_module(name):
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # no such package; not a module's name
        return False


def machine(where):
    """The first line: hardware, threads, dtype, whether compiled."""
    cuda = where.type == "cuda"
    return {
        "device": str(where),
        "name": torch.cuda.get_device_name(where) if cuda else processor(),
        "threads": torch.get_num_threads(),
        "dtype": str(machine.precision(where, dtype)).removeprefix("torch."),
        "compiled": machine.compiles(where, compile, iterations=10**6),
    }


def processor():
    with contextlib.suppress(OSError):
        if found := re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()):
            return found[1]
    return platform.processor()


# -- the parts -------------------------------------------------------------------------------------
def step(shape, where):
    base, methods = setting(shape, where), MODES[mode]
    flags = "--what=step", f"--method={methods[0]}", f"--batch={base.rows}"
    theirs = Reference(where, *flags, *base.shape.theirs)
    settings = {method: base._replace(method=method) for method in methods}
    ours, *others = taken = in_turn(shape, settings, theirs.measure)
    yield from (each.numbers() for each in taken)
    if theirs.found:
        yield theirs.numbers()
        rates = [base.rows / seconds for seconds in ours.medians()]
        yield ratio("sequences/s, ours over reference", rates, theirs.all("sequences_per_second"))
        peaks = [ours.peak / GIB] * rounds
        yield ratio("peak memory, ours over reference", peaks, theirs.all("peak_gb"))
    for other in others:
        name = f"seconds, {ours.name} over {other.name}"
        yield ratio(name, ours.medians(), other.medians())


def stages(shape, where):
    """Compare numbers of stages, with as many chains as the largest needs.

    A chain with few stages hides a little more: its first state is fully masked.
    """
    base = setting(shape, where)
    many = {K: stages_of(base.shape.length, K) for K in base.shape.Ks}
    base = base._replace(batches=batches_for(base.shape, max(many.values()), base.rows))
    settings = {f"{n} stages": base._replace(K=K) for K, n in many.items()}
    first, *others = taken = in_turn(shape, settings)
    yield from (each.numbers() for each in taken)
    for other in others:
        name = f"seconds, {other.name} over {first.name}"
        yield ratio(name, other.medians(), first.medians())


def attention(where):
    """Compare attention kernels; a compiled step fixes its kernel when traced."""
    if where.type != "cpu":
        return
    base = setting("sudoku", where)
    settings = {"fused": base._replace(short=0), "plain products": base}
    fused, plain = taken = in_turn("attention", settings)
    yield from (each.numbers() for each in taken)
    yield ratio("seconds, fused over plain products", fused.medians(), plain.medians())


def sample(where):
    base, taken = setting("sudoku", where), []
    theirs = Reference(where, "--what=sample", "--shape=sudoku", "--reveal=2")
    with Alone(Solver, base) as solver, Alone(Products, base) as products:
        for _ in progress_bar(range(rounds), "sample", leave=False):
            taken.append((*solver.ask("solve"), products.ask("rate")))
            theirs.measure()
        peak = solver.ask("peak")
    seconds, passes, flop, limits = zip(*taken, strict=True)
    rates = [n / s for n, s in zip(flop, seconds, strict=True)]
    ours = [len(base.data) / s for s in seconds]
    yield {
        "what": "ours", "puzzles_per_second": short(statistics.median(ours)), "passes": passes[0],
        "ms_per_pass": short(1e3 * statistics.median(seconds) / passes[0]),
        **throughput(rates, limits), "peak_gb": short(peak / GIB),
    }  # fmt: skip
    if theirs.found:
        yield theirs.numbers("batch")
        yield ratio("puzzles/s, ours over reference", ours, theirs.all("sequences_per_second"))


def setting(shape, where):
    s = SHAPES[shape]
    K, B, data = k or s.K, rows or s.rows, puzzles(s.box) if s.box else Noise(s)
    held = batches_for(s, stages_of(s.length, K), B)
    return Setting(s, data, "puma", K, B, held, transformer.SHORT, str(where), dtype, compile)


@functools.cache
def puzzles(box):
    return Puzzles(box)


def batches_for(s, stages, rows):
    """Enough batches for a chain at each stage, so that half is hidden on average."""
    return max(s.buffer, math.ceil(stages / rows))


# -- measuring in turn -----------------------------------------------------------------------------
def in_turn(label, settings, after_round=lambda: None):
    """Train with each of {name: Setting}, each in its own process: [Taken].

    On a CPU they take turns after each step, elsewhere after each round, so that the host can run
    ahead of the device. The baseline hides as many tokens as the one before it.
    """
    taken = [Taken(name, one) for name, one in settings.items()]
    base = taken[0].setting
    steps = base.batches * math.ceil(STEPS / base.batches)  # each chain is visited equally often
    turns = steps if base.device == "cpu" else 1
    total = rounds * steps * len(taken)
    bar = progress_bar(total=total, desc=f"{label}, compiles", unit="step", leave=False)
    with contextlib.ExitStack() as stack, bar:
        products = stack.enter_context(Alone(Products, base))
        for each in taken:
            each.process = stack.enter_context(Alone(Trainer, each.setting))
            each.process.ask("steps", base.shape.warmup)
        bar.set_description(label)
        for _ in range(rounds):
            for each in taken:
                each.begin_round(products.ask("rate"))
            for _ in range(turns):
                hidden = None
                for each in taken:
                    hidden = each.take(steps // turns, hidden)
                    bar.update(steps // turns)
            after_round()
        for each in taken:
            each.end()
    return taken


class Taken:
    """What one process measures: seconds [round][step], hidden tokens [step]."""

    def __init__(self, name, setting):
        self.name, self.setting = name, setting
        self.seconds, self.hidden, self.rates = [], [], []

    def begin_round(self, rate):
        self.seconds.append([])
        self.rates.append(rate)

    def take(self, steps, hidden):
        """Run steps, with that many hidden tokens if given; return their hidden tokens."""
        seconds, hidden = self.process.ask("steps", steps, hidden)
        self.seconds[-1] += seconds
        self.hidden += [sum(counts) for counts in hidden]
        return hidden

    def end(self):
        self.peak = self.process.ask("peak")
        self.launches = self.process.ask("launches")

    def medians(self):
        """The median seconds of a step in each round."""
        return [statistics.median(seconds) for seconds in self.seconds]

    def numbers(self):
        s, B, K = self.setting.shape, self.setting.rows, self.setting.K
        each, medians = [*itertools.chain(*self.seconds)], self.medians()
        seconds, hidden = statistics.median(each), statistics.mean(self.hidden)
        chains = {"K": K, "stages": stages_of(s.length, K)} if self.setting.method == "puma" else {}
        rates = [step_flop(s, B, n) / one for n, one in zip(self.hidden, each, strict=True)]
        return {
            "what": self.name, "rows": B, **chains,
            "ms_per_step": short(1e3 * seconds),
            "from": short(1e3 * min(medians)), "to": short(1e3 * max(medians)),
            "sequences_per_second": short(B / seconds),
            "tokens_per_second": short(B * s.length / seconds), "hidden_per_step": short(hidden),
            **throughput(rates, self.rates), "peak_gb": short(self.peak / GIB), **self.launches,
        }  # fmt: skip


class Reference:
    """The reference's results for the same flags; none if there is no reference."""

    def __init__(self, where, *flags):
        self.command = [sys.executable, "-m", reference, *flags]
        self.compares, self.found = bool(reference) and where.type == "cpu", []

    def measure(self):
        if self.compares:
            here = Path(__file__).parent
            done = subprocess.run(self.command, stdout=subprocess.PIPE, cwd=here, check=True)
            self.found.append(json.loads(done.stdout.splitlines()[-1]))

    def all(self, name):
        return [found[name] for found in self.found]

    def numbers(self, unit="step"):
        """unit: what its seconds measure."""
        names = "seconds", "sequences_per_second", "peak_gb"
        seconds, rate, peak = (short(statistics.median(self.all(name))) for name in names)
        milliseconds = {f"ms_per_{unit}": short(1e3 * seconds)}
        return {"what": "reference"} | milliseconds | {names[1]: rate, names[2]: peak}


# -- one process per measurement -------------------------------------------------------------------
class Alone:
    """kind(setting), created in its own process, which ends with the block or with this process.

    ask("name", ...) calls its method there. Raises RuntimeError if the process has failed.
    """

    def __init__(self, kind, setting):
        self.pipe, theirs = PROCESSES.Pipe()
        given = theirs, kind, setting, torch.get_num_threads()
        self.process = PROCESSES.Process(target=serve, args=given, daemon=True)
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: we end the process
        self.process.start()
        signal.signal(signal.SIGINT, handler)
        theirs.close()

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        self.pipe.close()  # then it ends, and cleans up after the compiler
        self.process.join(0 if failed else 60)
        self.process.kill()
        self.process.join()

    def ask(self, name, *args):
        try:
            self.pipe.send((name, args))
            return self.pipe.recv()
        except (EOFError, OSError):
            raise RuntimeError("the measuring process has died; see its error above") from None


def serve(pipe, kind, setting, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    processes.start(setting.device)
    made = kind(setting)
    with contextlib.suppress(EOFError, OSError):  # the asking process was killed
        while True:
            name, args = pipe.recv()
            pipe.send(getattr(made, name)(*args))


class Trainer:
    """Training steps as in train.py, but without averaged weights, with either stream."""

    def __init__(self, setting):
        s, self.where = setting.shape, torch.device(setting.device)
        transformer.SHORT = setting.short
        self.model = make_model(s).to(self.where)
        kind = Objective if s.words <= DENSE else ChunkedObjective
        self.objective = kind(self.model, policies.top_k)
        if machine.compiles(self.where, setting.compile, iterations=10**6):
            self.objective.compile()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.autocast = machine.autocast(self.where, setting.dtype)
        queue = ExampleQueue(setting.data, setting.rows, self.where)
        given = queue, s.words - 1, torch.Generator(self.where)
        self.stream = STREAMS[setting.method](setting, *given)
        if kind is ChunkedObjective:
            self.stream.count_hidden()

    def steps(self, n, hidden=None):
        """n steps: the seconds of each, and how many tokens of each row are hidden, [n][B].

        hidden: how many to hide, if the stream is the baseline.
        """
        self.stream.given = list(hidden or ())  # chains ignore it
        marks, counts = [mark(self.where)], []
        for _ in range(n):
            counts.append(self.step())
            marks.append(mark(self.where))
        return seconds_between(marks), [count.tolist() for count in counts]

    def step(self):
        batch = self.stream.batch(0)
        with self.autocast:
            loss, score, confidence = self.objective(*batch, self.stream.size())
        loss.backward()
        self.stream.advance(score, confidence)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return batch.hidden.sum(1)

    def peak(self):
        return machine.peak_memory(self.where)

    def launches(self):
        """For a step on CUDA: ms of the host and of the device, and the number of launches."""
        if self.where.type != "cuda":
            return {}
        synchronise(self.where)
        start = time.perf_counter()
        for _ in range(STEPS):
            self.step()
        host = time.perf_counter() - start
        synchronise(self.where)
        with profile(activities=[ProfilerActivity.CUDA]) as record:
            for _ in range(STEPS):
                self.step()
            synchronise(self.where)
        return {"host_ms": short(1e3 * host / STEPS)} | on_device(record.events(), STEPS)


def on_device(events, steps):
    """Per step, from a profiler's events: ms of kernels and copies, and their number."""
    ran = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    busy = sum(e.time_range.elapsed_us() for e in ran)
    return {"device_ms": short(busy / 1e3 / steps), "launches": short(len(ran) / steps)}


def chains(setting, *given):
    return ProgressiveUnmasking(*given, [(0, setting.K)], 0.9, setting.batches)


def random_masks(setting, *given):
    return GivenCounts(*given)


class GivenCounts(RandomMasking):
    """The baseline, with the hidden tokens per row that `given` lists for the next batches."""

    def hide(self, prompt, block):
        if not self.given:
            return super().hide(prompt, block)
        count = torch.tensor(self.given.pop(0), device=prompt.device)
        return choose_random(~prompt, count, self.generator)


class Solver:
    """Puzzles, and a model that fills them in."""

    def __init__(self, setting):
        self.shape, self.where = setting.shape, torch.device(setting.device)
        self.model = make_model(self.shape).to(self.where).eval()
        self.autocast = machine.autocast(self.where, setting.dtype)
        every = setting.data[range(len(setting.data))]
        x0, prompt = (torch.as_tensor(part, device=self.where) for part in every)
        self.hidden = ~prompt
        self.x = x0.long().masked_fill(self.hidden, self.model.mask_token)
        self.tokens = 0  # tokens that went through the model
        self.model.register_forward_pre_hook(self.count)

    def count(self, model, inputs):
        self.tokens += inputs[0].numel()

    def solve(self):
        """Seconds, forward passes and FLOP of solving all puzzles."""
        start, self.tokens = mark(self.where), 0
        with self.autocast:
            _, at, passes = generate(self.model, self.x, self.hidden, Sampler(), batch_size=128)
        (seconds,) = seconds_between([start, mark(self.where)])
        return seconds, passes, forward_flop(self.shape, self.tokens, at.sum().item())

    def peak(self):
        return machine.peak_memory(self.where)


class Products:
    """Products of large matrices."""

    def __init__(self, setting):
        self.where = torch.device(setting.device)
        self.n = LARGE[setting.device != "cpu"]
        kind = machine.precision(self.where, setting.dtype)
        self.a = torch.randn(self.n, self.n, device=self.where).to(kind)
        self.rate()

    def rate(self):
        """FLOP per second."""
        marks = [mark(self.where)]
        for _ in range(STEPS):
            self.a @ self.a
            marks.append(mark(self.where))
        return 2 * self.n**3 / statistics.median(seconds_between(marks))


STREAMS = {"puma": chains, "mdm": random_masks}


def make_model(s):
    return Transformer(s.words, s.words - 1, s.length, s.dim, s.layers, s.heads, s.mlp, tied=s.tied)


class Puzzles:
    """256 generated puzzles as a data set."""

    def __init__(self, box):
        self.puzzles, self.solutions = make_puzzles(256, box)

    def __len__(self):
        return len(self.puzzles)

    def __getitem__(self, indices):
        return self.solutions[indices] - 1, self.puzzles[indices] > 0


class Noise:
    """Random ids after prompts, 1000 rows."""

    def __init__(self, shape):
        self.shape = shape

    def __len__(self):
        return 1000

    def __getitem__(self, indices):
        L = self.shape.length
        x0 = np.random.default_rng(0).integers(self.shape.words - 1, size=(len(indices), L))
        return x0, np.tile(np.arange(L) < self.shape.prompt, (len(indices), 1))


def mark(where):
    """A point in time; on CUDA an event in its queue, without waiting."""
    if where.type == "cuda":
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
    synchronise(where)
    return time.perf_counter()


def seconds_between(marks):
    pairs = itertools.pairwise(marks)
    if isinstance(marks[0], float):
        return [after - before for before, after in pairs]
    marks[-1].synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairs]


def synchronise(where):
    if where.type != "cpu":
        torch.accelerator.synchronize()


# -- numbers ---------------------------------------------------------------------------------------
def forward_flop(s, tokens, scored):
    """FLOP of a forward pass, as in the module's docstring."""
    weights = s.layers * (4 * s.dim**2 + 3 * s.dim * s.mlp)
    attention = 4 * s.layers * s.length * tokens * s.dim
    return 2 * weights * tokens + attention + 2 * scored * s.words * s.dim


def step_flop(s, rows, hidden):
    """FLOP of a training step: a backward pass costs twice the forward pass."""
    tokens = rows * s.length
    return 3 * forward_flop(s, tokens, tokens if s.words <= DENSE else hidden)


def throughput(rates, limits):
    """Medians of FLOP per second: of the steps, and of large products measured beside them."""
    rate, limit = statistics.median(rates), statistics.median(limits)
    names = "tflop_per_second", "matrix_tflop_per_second", "share_of_matrix_rate"
    values = rate / TERA, limit / TERA, rate / limit
    return {name: short(value) for name, value in zip(names, values, strict=True)}


def ratio(name, ours, theirs):
    """Ratios of numbers measured in turn."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, high = min(ratios), max(ratios)
    numbers = {"median": statistics.median(ratios), "from": low, "to": high}
    return {"ratio of": name} | {name: round(number, 3) for name, number in numbers.items()}


def short(number):
    """Rounded to four digits."""
    return float(f"{number:.4g}")


def markdown(lines):
    """A table per part, and one of the ratios."""
    tables = {}
    for line in lines:
        tables.setdefault("ratio of" if "ratio of" in line else line["part"], []).append(line)
    shown = []
    for group in tables.values():
        head = list(dict.fromkeys(name for line in group for name in line))
        rows = [[str(line.get(name, "")) for name in head] for line in group]
        shown.append(table(head, rows))
    return "\n\n".join(shown)


PARTS = {
    "step": functools.partial(step, "sudoku"),
    "text_step": functools.partial(step, "text"),
    "stages": functools.partial(stages, "sudoku"),
    "text_stages": functools.partial(stages, "text"),
    "sample": sample,
    "attention": attention,
}

if __name__ == "__main__":
    configure(globals())
    main()
