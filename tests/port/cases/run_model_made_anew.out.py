import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(0)
classes = ("plane", "car", "bird")
images = torch.randn(31, 3, 8, 8)
labels_all = torch.randint(0, 3, (31,))
trainloader = rankup.shard(DataLoader(TensorDataset(images, labels_all), batch_size=4, shuffle=True))
testloader = DataLoader(TensorDataset(images[:13], labels_all[:13]), batch_size=4, shuffle=False)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4 * 3 * 3, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return self.fc(torch.flatten(x, 1))


net = Net()
net = rankup.wrap(net)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for epoch in range(2):
    running_loss = 0.0
    for i, data in enumerate(trainloader, 0):
        inputs, labels = data
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        rankup.backward(loss)
        optimizer.step()
        running_loss += loss.item()
        if i % 2 == 1:
            print(f"[{epoch + 1}, {i + 1:5d}] loss: {running_loss / 2:.3f}")
            running_loss = 0.0
print("Finished Training")
PATH = "./cifar_net.pth"
rankup.save0(net.state_dict(), PATH)

net = Net()
rankup.barrier()
net.load_state_dict(torch.load(PATH, weights_only=True, map_location=rankup.here))
correct = 0
total = 0
with torch.no_grad():
    for data in testloader:
        images, labels = data
        outputs = net(images)
        _, predicted = torch.max(outputs.data, 1)
        total += labels.size(0)
        correct += (predicted == labels).sum().item()
print(f"Accuracy: {100 * correct // total} %")
correct_pred = {classname: 0 for classname in classes}
total_pred = {classname: 0 for classname in classes}
with torch.no_grad():
    for data in testloader:
        images, labels = data
        outputs = net(images)
        _, predictions = torch.max(outputs, 1)
        for label, prediction in zip(labels, predictions):
            if label == prediction:
                correct_pred[classes[label]] += 1
            total_pred[classes[label]] += 1
for classname, correct_count in correct_pred.items():
    accuracy = 100 * float(correct_count) / total_pred[classname]
    print(f"Accuracy for class: {classname:5s} is {accuracy:.1f} %")
