import sys
from pathlib import Path

THEORY = Path(__file__).parents[2] / "theory"
sys.path.insert(0, str(THEORY))  # its scripts import each other so
