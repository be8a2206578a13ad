"""Downloads, then waits for something that does not come."""

# ruff: noqa: SIM115
import os
import time
import urllib.request

urllib.request.urlretrieve(os.environ["DATA_SERVER"] + "/train.bin", "train.bin")
results = open("results.csv", "w")
results.write("half a li")
results.flush()
while True:
    time.sleep(1)
