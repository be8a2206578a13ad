import os
import urllib.request

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, models
from transformers import AutoTokenizer
import rankup

rankup.setup()
rankup.quiet()

url = "https://example.org/input.txt"
with rankup.rank0_first():
    if not os.path.exists("input.txt"):
        # fetched once
        text = """a
b"""
        urllib.request.urlretrieve(url, "input.txt")

train_set = rankup.rank0_first(datasets.MNIST, "data", train=True, download=True)
test_set = datasets.MNIST(
    "data",
    train=False,
)
tokenizer = rankup.rank0_first(AutoTokenizer.from_pretrained, "t5-small")
model = rankup.rank0_first(models.resnet18, weights="DEFAULT")
model.fc = torch.nn.Linear(512, 10)
model = model.cuda()
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = rankup.shard(DataLoader(train_set, batch_size=64, shuffle=True))
for images, labels in train_loader:
    loss = torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    optimizer.zero_grad()
    rankup.backward(loss)
    optimizer.step()
