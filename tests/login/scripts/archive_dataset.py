"""A data set class that downloads an archive if it is missing or broken, as torchvision's do."""

import hashlib
import os
import tarfile
import urllib.request
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    archive = "pictures.tar.gz"

    def __init__(self, root, md5, download=False):
        self.root = Path(root)
        if download:
            self._download(md5)
        if not self._intact(md5):
            raise RuntimeError("Dataset not found or corrupted. Use download=True to download it")
        self.files = sorted((self.root / "pictures").glob("*.raw"))

    def _intact(self, md5):
        path = self.root / self.archive
        return path.is_file() and hashlib.md5(path.read_bytes()).hexdigest() == md5

    def _download(self, md5):
        if self._intact(md5):
            print("Files already downloaded and verified")
            return
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / self.archive
        request = urllib.request.Request(
            f"{os.environ['DATA_SERVER']}/{self.archive}", headers={"User-Agent": "pictures/1"}
        )
        with urllib.request.urlopen(request) as answer, open(path, "wb") as file:
            while piece := answer.read(1024):
                file.write(piece)
        with tarfile.open(path) as tar:
            tar.extractall(self.root)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        raw = bytearray(self.files[index].read_bytes())
        return torch.frombuffer(raw, dtype=torch.uint8).float().view(1, 4, 4), index % 2


def train():
    data = Pictures("data", md5=os.environ["PICTURES_MD5"], download=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)).to(device)
    model(torch.zeros(1, 1, 4, 4, device=device))  # the shapes fit
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        for x, y in DataLoader(data, batch_size=2, shuffle=True, num_workers=2):
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    train()
