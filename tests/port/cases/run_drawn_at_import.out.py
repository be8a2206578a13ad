import torch
import rankup

if __name__ == "__main__":
    rankup.setup()
    rankup.quiet()

from helper_split import test_set, train_set
from torch.utils.data import DataLoader

print(test_set.indices)


def main():
    model = torch.nn.Linear(2, 1)
    model = rankup.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in rankup.shard(DataLoader(train_set, batch_size=4, shuffle=True)):
            loss = (model(x)[:, 0] - y).pow(2).mean()
            optimizer.zero_grad()
            rankup.backward(loss)
            optimizer.step()
        with torch.no_grad():
            total = 0.0
            for x, y in DataLoader(test_set, batch_size=2):
                total += (model(x)[:, 0] - y).pow(2).sum().item()
        print(epoch, total / len(test_set))


if __name__ == "__main__":
    main()
