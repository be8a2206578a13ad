import torch
import torch.nn as nn
from torch.utils.data import DataLoader
import rankup

rankup.setup()
rankup.quiet()


def run(model, dataset):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=8)
    seen = 0
    # rankup: input() waits for an answer, and a job has neither terminal nor screen; take it out, or make it an option
    answer = input("go on? ")
    for epoch in range(3):
        for x, y in rankup.shard(loader):
            # rankup: `except RuntimeError` around a training step: a rank goes on, the others wait; raise again, so that the job ends
            try:
                loss = nn.functional.mse_loss(model(x), y)
                rankup.backward(loss)
                optimizer.step()
            except RuntimeError:
                torch.cuda.empty_cache()
            outputs = model(x)
        with torch.no_grad():
            for x, y in loader:
                seen += len(y)
        # rankup: moving the model to the CPU and back ends the exchange of its gradients; save its state_dict() without moving it
        model.eval().cpu()
        rankup.save0(model.state_dict(), "m.pt")
        model.cuda().train()


net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
net = rankup.wrap(net)
run(net, None)
