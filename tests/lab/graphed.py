"""lab.graphs on a CPU: a record computes nothing, as a capture, and its replay is the update."""

import torch

from lab import graphs


class Record:
    def replay(self):
        queue = self.stream.queue
        host = queue.calls, self.stream.turn
        queue.calls, self.stream.turn = 1, self.turn  # 1: nothing is read now
        self.update(self.stream, self.iteration)
        queue.calls, self.stream.turn = host


class OnCpu(graphs.Replayed):
    def __init__(self, update, optimizer):
        self.update = update
        self.groups = optimizer.param_groups
        self.lr = torch.zeros((), dtype=torch.float64)  # a GPU has float32, which rounds
        self.records = {}
        self.updates = 0

    def on_the_side(self, work):
        work()

    def record(self, graph, stream, iteration):
        graph.stream = stream
        graph.turn = getattr(stream, "turn", 0)
        graph.update = self.update
        graph.iteration = iteration
        stream.turn = (graph.turn + 1) % len(getattr(stream, "stage", [0]))


def wrap_update(update, model, optimizer):
    torch.cuda.CUDAGraph = Record
    return OnCpu(update, optimizer)
