"""What every GPU did: samples of all nodes, what they mean, and the report. No torch here.

`collect/` writes the tables of each node into `<run>/monitor/`; `load` makes of them and of the
run's `metrics.jsonl` a `Recording`, `diagnose/` turns that into findings, and `report/` shows
it; `live` shows a run while it goes on.
"""
