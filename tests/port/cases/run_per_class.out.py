import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
valid = DataLoader(TensorDataset(x[:13], y[:13]), batch_size=4)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()

class_correct = [0.0, 0.0]
class_total = [0.0, 0.0]
matrix = torch.zeros(2, 2)
by_name = {"right": 0, "all": 0}
with torch.no_grad():
    for inputs, labels in valid:
        predicted = model(inputs).argmax(1)
        hits = predicted == labels
        for i in range(len(labels)):
            class_correct[labels[i]] += hits[i].item()
            class_total[labels[i]] += 1
        for t, p in zip(labels, predicted):
            matrix[t, p] += 1
        by_name["right"] += hits.sum().item()
        by_name["all"] += labels.size(0)
print(class_correct, class_total, matrix.tolist(), by_name)
