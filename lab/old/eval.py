"""Evaluate a run: accuracy of samplers on held-out problems, or its likelihood bound.

    python eval.py --out_dir=out/sudoku_mini_puma_1                   accuracy, failures by kind
    python eval.py --reveal="[1,2,4]" --tau="[None,0.9]"              a grid of samplers
    python eval.py --nelbo                                            nats per token
    python eval.py --out_dir=out/gsm_mini_puma_1 --problems=transfer  another set of the task's
    python eval.py --out_dir=... --file=QUESTIONS.jsonl               problems in a file
    python eval.py --out_dir=... --reference                          judge the reference solutions
    python eval.py --out_dir=out/own_text_puma_1 --problems=exact     own text; or a judge.py
    python eval.py config/humaneval.py --out_dir=... --samples=20     programs with tests, pass@k
    torchrun --nproc_per_node=8 eval.py --out_dir=...                 problems split over processes

Uses the run's averaged weights. Writes out_dir/eval.json, a row per sampler; eval.md, the rows of
the latest problems as a table; eval.jsonl, a record per problem. A repeated command evaluates only
what is missing under the same settings. --nelbo writes nelbo.json, with standard errors: the bound
per example, per token (all but the prompt), and per token without padding; for text without prompts
also bits per character (ends of text not counted).
"""

from configurator import configure, errors_as_messages  # isort: skip (first, to say if torch is missing)
import contextlib
import itertools
import time
import zlib
from pathlib import Path

import numpy as np
import torch

import tasks
from engine import processes
from engine.files import Lock, progress_bar, say, write
from engine.log import code
from engine.machine import autocast
from runs import results
from runs.saved import checksum, open_run
from sample import Sampler, generate

# -- what ----------------------------------------------------------------------------------------
out_dir = "weights/sudoku_mini"  # a run, whose averaged weights are used, or export.py's folder
problems = ""  # "" = held out; transfer (word problems); humaneval; mbpp; for own text, a judge
file = ""  # read problems from this file, in the form of the run's task or of `problems`
examples: int | None = None  # 1..: most problems to use; None = all
tries = 1  # 1..: per problem, until an answer keeps the rules (Sudoku: each under a new symmetry)
loops: int | None = None  # 1..: passes through the layers; None = as in training
reference = False  # judge the reference solutions instead of a model's
nelbo = False  # the bound on the negative log-likelihood instead of accuracy
masks = 16  # 1..: per example, for nelbo
chain = False  # with nelbo: also the likelihood of tokens drawn at T = 1 in the order of T = 0
# -- programs with tests (humaneval, mbpp) -----------------------------------------------------
samples = 1  # 1..: programs per problem
new_tokens = 512  # 1..: tokens of an answer, with the end-of-text tokens that pad it
length = 2048  # 2..: most tokens of prompt and answer; may be more than in training
seconds = 3.0  # 0.001..3600: time limit of a program with its tests
# -- system --------------------------------------------------------------------------------------
seed = 1  # 0..: for sampled tokens, the random policy and the masks
batch_size = 64  # 1..: rows sampled at a time
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32; "" = chosen by the hardware
CODE = "humaneval", "mbpp"  # sets of programs with tests, for any run trained on text


def main(settings):
    with errors_as_messages("interrupted: the same command continues from there"):
        samplers = grid(*(settings[field] for field in Sampler._fields))
        place = processes.start(device)
        version = {"code": code()}
        processes.agree(settings | version)
        if reference:
            if place.rank == 0:
                from runs.problem_sets import judge_references

                print(judge_references(out_dir, problems, file, examples, form()))
        else:
            longest = length if problems in CODE else 0
            saved = open_run(out_dir, place.device, longest)
            if place.rank == 0:
                say(f"{out_dir}, iteration {saved.iteration}")
            conditions = version | {"iteration": saved.iteration, "weights": checksum(saved.model)}
            conditions |= dict(seed=seed, dtype=dtype, device=place.device.type)
            conditions |= {"batch_size": batch_size, "set": problems}
            if loops:
                conditions["loops"] = saved.model.model.loops = loops
            with autocast(place.device, dtype):
                if nelbo:
                    from runs import likelihood

                    how = problems, examples, masks, chain, batch_size, seed
                    likelihood.measure(saved, out_dir, conditions, place, *how)
                else:
                    measure_samplers(saved, in_use(samplers, saved.model), conditions, place)
        processes.leave()


def form():
    return samples, new_tokens, length, seconds


def open_results(conditions, content, place):
    """The results in out_dir under these conditions: as the first process reads them, on all."""
    is_code = problems in CODE  # its batches have their own random states
    conditions |= {"file": file, "limit": examples, "content": content, "tries": tries}
    conditions |= {"form": form() if is_code else None}
    conditions |= {"processes": None if is_code else place.world}
    kept = results.Results(Path(out_dir), conditions, place.rank)
    kept.share(processes.gather)
    return kept


def grid(*fields):
    """A Sampler for every combination of values; each field is one value or a list of them.

    Combinations with both thresholds are dropped if others remain. Raises ValueError if none is
    left, or one is invalid.
    """
    lists = [field if isinstance(field, list | tuple) else [field] for field in fields]
    samplers = [*map(Sampler._make, itertools.product(*lists))]
    samplers = [s for s in samplers if None in (s.tau, s.tau_entropy)] or samplers
    if not samplers:
        raise ValueError("an empty grid: each list needs a value; --tau=[None] means no threshold")
    for sampler in samplers:
        sampler.check()
    return samplers


def in_use(samplers, model):
    """The distinct samplers among them; a causal model has only one order."""
    if model.causal:
        order = dict(policy="left_to_right", reveal=1, tau=None, tau_entropy=None)
        samplers = [sampler._replace(**order) for sampler in samplers]
    return [*dict.fromkeys(samplers)]


# -- accuracy --------------------------------------------------------------------------------------
def measure_samplers(saved, samplers, conditions, place):
    """Evaluate the samplers that have no results yet; print one in words, several as a table."""
    from runs import problem_sets

    with processes.main_process_first():
        test = problem_sets.of_run(saved, problems, file, examples, form())
    own = problems.endswith(".py")  # a user's judge may import or read anything: always anew
    content = [results.content(test), processes.gather(time.time_ns() if own else 0)[0]]
    with Lock(out_dir, "eval.lock") if place.rank == 0 else contextlib.nullcontext():
        kept = open_results(conditions, content, place)
        missing = [sampler for sampler in samplers if not kept.row(sampler)]
        if tries > 1 and test.again(1) is test and any(s.temperature == 0 for s in missing):
            raise ValueError(f"{tries=}: expected temperature > 0, or all tries give one answer")
        for sampler in missing:
            cost = solve_missing(saved, test, sampler, kept, place.rank, place.world)
            cost |= results.within(kept.records(sampler), tries)
            kept.finish(sampler, test.summary(kept.records(sampler)) | cost)
        if place.rank == 0:
            rows = [kept.row(sampler) for sampler in samplers]
            tables = results.results_table(kept.comparable())
            write(Path(out_dir) / "eval.md", tables + "\n")
            print(results.summary_text(rows[0]) if len(rows) == 1 else tables)


def solve_missing(saved, test, sampler, kept, rank, world):
    """Add records of the problems that have none yet; the cost over all processes, if it is all."""
    begin, passes = time.perf_counter(), 0
    done = {row["index"] for row in kept.records(sampler)}
    count = min(examples or len(test), len(test))
    shares = [test.batches(count, batch_size, number, world) for number in range(world)]
    todo = sum(len(batch) for batch in shares[rank] if not done.issuperset(batch))
    bar = progress_bar(total=todo, desc=str(sampler), unit="problem", leave=False, show=rank == 0)
    for batches in itertools.zip_longest(*shares, fillvalue=()):  # one for each process
        indices = np.array(batches[rank], int)
        records = []
        if not done.issuperset(indices.tolist()):  # a batch that was cut off is redone whole
            records, more = solve(saved, test, indices, sampler, bar.update)
            passes += more
        for part in processes.gather({"records": [r for r in records if r["index"] not in done]}):
            kept.add(sampler, part["records"])
    bar.close()
    seconds = max(processes.gather(time.perf_counter() - begin))
    cost = {
        "forward_passes": int(processes.all_reduce_sum([passes])[0]),
        "seconds": round(seconds, 2),
    }
    return dict.fromkeys(cost) if done else cost


def solve(saved, test, indices, sampler, progress):
    """A record of each problem at `indices` (n,), and the forward passes. Each batch has a seed.

    The steps of a record are those of all its tries; a try ends where it breaks a rule.
    """
    torch.manual_seed(zlib.crc32(f"{seed} {indices[0]}".encode()))
    device = saved.model.lm_head.weight.device
    records, passes, left = {}, 0, np.asarray(indices)
    for attempt in range(tries):
        problems = test.again(attempt) if attempt else test
        x, hidden = tasks.problems_on(device, problems, left)
        tokens, revealed_at, more = generate(
            saved.model, x, hidden, sampler, saved.block, batch_size,
            lambda rows: progress(rows / tries), test.broken if tries > 1 else None,
        )  # fmt: skip
        passes += more
        judged = problems.judge(tokens.cpu().numpy(), left)
        cost = zip(hidden.sum(1).tolist(), revealed_at.amax(1).tolist(), strict=True)
        for i, (count, steps), verdict in zip(left.tolist(), cost, judged, strict=True):
            steps += records[i]["steps"] if attempt else 0
            records[i] = {"index": i, "tokens": count, "steps": steps} | verdict
            records[i] |= {"tries": attempt + 1} if tries > 1 else {}
        wrong = np.array([verdict["kind"] != "correct" for verdict in judged])
        progress((~wrong).sum() * (1 - (attempt + 1) / tries))
        left = left[wrong]
        if not len(left):
            break
    return [*records.values()], passes


if __name__ == "__main__":
    main(configure(globals(), fields=Sampler, lists=True))
