# -*- coding: utf-8 -*-
try:
    import numpy as np
except ImportError:
    np = None
import torch.nn.functional as F, torch
import torch.utils.data as td
from torch.optim import Adam as Optimizer
import rankup

rankup.setup()
rankup.quiet()

net = torch.nn.Linear(3, 3)
net = rankup.wrap(net)
opt = Optimizer(net.parameters())
dl = rankup.shard(td.DataLoader(range(9), 3))
for b in dl:
    l = F.mse_loss(net(b), b)
    opt.zero_grad(); rankup.backward(l); opt.step()
