"""AdamW, as the paper has it: train.py --optimizer=lab.adamw. Vectors have no weight decay."""

import torch


def make_optimizer(model, lr, weight_decay):
    vectors = {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1]}, vectors]
    return torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay, fused=True)
