import torch
from torch.utils.data import DataLoader

type Batch = tuple[torch.Tensor, torch.Tensor]


def first[T](items: list[T]) -> T:
    return items[0]


def main(dataset, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(dataset, batch_size=4):
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(f"{"loss"}: {loss.item()}")


net = torch.nn.Linear(2, 1)
main([], net)
