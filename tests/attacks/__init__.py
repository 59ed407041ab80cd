"""What damage the project notices, counted: scripts to run by hand, not tests.

    python -m tests.attacks.damage --group=checkpoints,nan      damaged files, disks, settings
    python -m tests.attacks.damage --commit=HEAD~5 --share=0.1  a tenth of the cases, a version
    python -m tests.attacks.kill --count=100                    kill -9 at any moment, then resume

A group is a function that yields cases (`lab.Case`): what is damaged, the command that is run on
it, and what it gives where nothing is damaged. Each case gets a verdict (`report.py`). All work
goes on in a copy of the repository in a temporary folder, so that data kept there can be damaged.
"""
