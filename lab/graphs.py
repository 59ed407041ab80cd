"""Updates of train.py as CUDA graphs: small models, which a GPU computes faster than it is told.

    python train.py config/sudoku.py --variant=lab.graphs

The first updates run as they are. Then each update that differs in what the host decides (random
masks or chains, whose turn it is among the batches of chains) is recorded once and replayed. A
module of yours that changes something else has `from lab.graphs import wrap_update`. On a CPU
nothing changes. For one process, and for rows whose logits fit into memory (loss_and_scores).
"""

import torch

WARM = 3  # updates before the first record: they make the optimizer's state


def wrap_update(update, model, optimizer):
    """update(stream, iteration) of train.py; on a GPU the same, recorded and replayed."""
    return Replayed(update, optimizer) if next(model.parameters()).is_cuda else update


class Replayed:
    def __init__(self, update, optimizer):
        self.update = update
        self.groups = optimizer.param_groups
        self.lr = torch.zeros((), device="cuda")  # what the recorded kernels read
        self.side = torch.cuda.Stream()  # recording does not work on the usual one
        self.pool = torch.cuda.graph_pool_handle()
        self.records = {}  # {what the host decides: (graph, turn after it)}
        self.updates = 0

    def __call__(self, stream, iteration):
        lr = self.groups[0]["lr"]
        self.lr.fill_(lr)
        for group in self.groups:
            group.update(lr=self.lr, capturable=True)
        self.updates += 1
        stages = getattr(stream, "stages", 0)
        changes = stages and stages != stream.stages_at(iteration)  # K: new tensors
        if self.updates <= WARM or changes:
            self.records.clear()
            calls = stream.queue.calls
            self.on_the_side(lambda: self.update(stream, iteration))
            self.takes = stream.queue.calls - calls  # of the queue, each update
        else:
            self.replay(stream, iteration)
        for group in self.groups:
            group.update(lr=lr, capturable=False)

    def replay(self, stream, iteration):
        queue = stream.queue
        if queue.calls % queue.AHEAD in (0, *range(queue.AHEAD - self.takes + 1, queue.AHEAD)):
            queue.fill(int(queue.taken) + len(queue.x0))  # what `take` does at times
            queue.calls = 0
        key = id(stream), getattr(stream, "turn", 0)
        if key not in self.records:
            calls, queue.calls = queue.calls, 1  # so that the recorded `take` does not wait
            graph = torch.cuda.CUDAGraph()
            self.on_the_side(lambda: self.record(graph, stream, iteration))
            queue.calls = calls
            self.records[key] = graph, getattr(stream, "turn", 0)
        graph, stream.turn = self.records[key]
        graph.replay()
        queue.calls += self.takes

    def record(self, graph, stream, iteration):
        graph.capture_begin(pool=self.pool)
        self.update(stream, iteration)
        graph.capture_end()

    def on_the_side(self, work):
        torch.cuda.synchronize()
        with torch.cuda.stream(self.side):
            work()
        torch.cuda.synchronize()
