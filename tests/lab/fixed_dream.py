"""lab.dream_coder on masks without chance."""

from lab.dream_coder import make_model
from tests.lab.fixed import make_streams

__all__ = "make_model", "make_streams"
