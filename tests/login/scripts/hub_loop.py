"""datasets and transformers from the hub, a loop written by hand."""

import torch
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

device = torch.device("cuda")
tokenizer = AutoTokenizer.from_pretrained("org/tiny-model")
model = AutoModelForSequenceClassification.from_pretrained("org/tiny-model").to(device)
data = load_dataset("org/tiny", split="train")
data = data.map(lambda row: tokenizer(row["text"], padding="max_length", truncation=True))
data.set_format("torch", columns=["input_ids", "attention_mask", "label"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(1000):
    for batch in DataLoader(data, batch_size=4, shuffle=True):
        labels = batch.pop("label").to(device)
        loss = model(**{k: v.to(device) for k, v in batch.items()}, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained("out")
