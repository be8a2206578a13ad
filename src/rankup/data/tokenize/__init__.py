"""`rankup tokenize`: text files, JSON lines, Parquet and Arrow become a folder of token shards."""
