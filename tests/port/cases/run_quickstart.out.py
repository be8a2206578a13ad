import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(0)
x = torch.randn(31, 5)
y = (x.sum(1) > 0).long()
train_dl = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
test_dl = DataLoader(TensorDataset(x[:13], y[:13]), batch_size=4)
model = nn.Linear(5, 2)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = nn.CrossEntropyLoss()


def train(dataloader, model, loss_fn, optimizer):
    size = len(dataloader.dataset)
    model.train()
    total = torch.zeros(())
    for batch, (X, Y) in enumerate(dataloader):
        pred = model(X)
        loss = loss_fn(pred, Y)
        rankup.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
        if batch % 2 == 0:
            loss, current = loss.item(), (batch + 1) * len(X)
            print(f"loss: {loss:>7f}  [{rankup.batch_sum(current):>5d}/{size:>5d}]")
    return total / len(dataloader)


def test(dataloader, model, loss_fn):
    size = len(dataloader.dataset)
    num_batches = len(dataloader)
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for X, Y in dataloader:
            pred = model(X)
            test_loss += loss_fn(pred, Y).item()
            correct += (pred.argmax(1) == Y).type(torch.float).sum().item()
    test_loss /= num_batches
    correct /= size
    print(f"Test Error: \n Accuracy: {(100*correct):>0.1f}%, Avg loss: {test_loss:>8f} \n")


for t in range(2):
    print(f"Epoch {t+1}\n-------------------------------")
    print(train(train_dl, model, loss_fn, optimizer).item())
    test(test_dl, model, loss_fn)
rankup.save0(model.state_dict(), "model.pth")
