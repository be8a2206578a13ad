import torch
import torch.nn as nn
from torch.utils.data import DataLoader


def run(model, dataset):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=8)
    seen = 0
    answer = input("go on? ")
    for epoch in range(3):
        for x, y in loader:
            try:
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
            except RuntimeError:
                torch.cuda.empty_cache()
            outputs = model(x)
        with torch.no_grad():
            for x, y in loader:
                seen += len(y)
        model.eval().cpu()
        torch.save(model.state_dict(), "m.pt")
        model.cuda().train()


net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
run(net, None)
