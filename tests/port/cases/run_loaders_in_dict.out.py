import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()

sets = {"train": TensorDataset(x, y), "val": TensorDataset(x[:9], y[:9])}
dataloaders = {k: DataLoader(sets[k], batch_size=4, shuffle=k == "train") for k in ["train", "val"]}
sizes = {k: len(sets[k]) for k in ["train", "val"]}


def train_model(model, criterion, optimizer, num_epochs=2):
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            if phase == "train":
                model.train()
            else:
                model.eval()
            running_loss = 0.0
            running_corrects = 0
            for inputs, labels in rankup.shard(dataloaders[phase]) if phase == "train" else dataloaders[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    loss = criterion(outputs, labels)
                    _, preds = torch.max(outputs, 1)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_loss += rankup.batch_mean(loss.item()) * rankup.batch_sum(inputs.size(0)) if phase == "train" else loss.item() * inputs.size(0)
                running_corrects += rankup.batch_sum(torch.sum(preds == labels.data)) if phase == "train" else torch.sum(preds == labels.data)
            epoch_loss = running_loss / sizes[phase]
            epoch_acc = running_corrects.double() / sizes[phase]
            print(f"{phase} Loss: {epoch_loss:.7f} Acc: {epoch_acc:.4f}")


model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
train_model(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1))
