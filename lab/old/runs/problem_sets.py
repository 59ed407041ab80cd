"""The problems that eval.py is asked for: held out, a named set of the run's task, or a file.

humaneval and mbpp are sets for any run that was trained on text: programs with tests.
"""

from runs.results import summary_text
from runs.saved import load, load_task
from tasks import codeeval, gsm8k, printable, text

CODE = "humaneval", "mbpp"


def of_run(saved, name, file, most, form):
    """The problems for a saved.Saved run. Raises ValueError if they do not suit it.

    For CODE: most, the number of problems, None = all; form, the programs per problem, tokens of an
    answer, tokens of prompt and answer, seconds of a program.
    """
    if name not in CODE:
        return of_task(saved.config, name, file, saved.model)
    samples, new_tokens, length, seconds = form
    if new_tokens >= length:
        raise ValueError(f"new_tokens {new_tokens}: expected less than length {length}")
    chosen = codeeval.read(name, file)[:most]
    encoding = codeeval.encoding_of(saved)
    return codeeval.Sampled(chosen, encoding, length, seconds, samples, new_tokens)


def of_task(config, name, file, model=None):
    task = load_task(config, model)
    test = task.problems(name, file) if name or file else task.test
    if not test.judged:
        raise ValueError(
            "this run's texts have no judge: expected --nelbo, for their likelihood, or, if they "
            "have prompts, --problems=exact or --problems=FILE.py (tasks/own_text.py)"
        )
    return test


def with_references(config, name, file, form):
    """Problems whose reference solutions can be judged; config: of a run, or None without one."""
    _, _, length, seconds = form
    if name in CODE:
        return codeeval.Programs(codeeval.read(name, file), None, length, seconds)
    if file and config is None:  # word problems: their programs need no trained run
        return text.Questions(gsm8k.read_problems(file), None, length)
    return of_task(config, name, file)


def judge_references(out_dir, name, file, most, form):
    """Judge the first `most` reference solutions; the failures and a summary, as text."""
    try:
        config = load(out_dir)["config"]
    except FileNotFoundError:
        config = None
    test = with_references(config, name, file, form)
    records = test.judge_references(most)
    failed = [test.verdict(record) for record in records if record["kind"] != "correct"]
    return "\n".join([*map(printable, failed), summary_text(test.summary(records))])
