"""What every GPU did: samples of all nodes, what they mean, and the report. No torch here.

`collect/` writes `<run>/monitor/<node>.jsonl`; `load` reads it and the run's `metrics.jsonl` into
a `Recording`; `diagnose/` turns that into findings; `report/` and `live/` show it.
"""
