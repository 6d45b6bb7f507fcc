"""`python -m trainer.data.prepare`: text, JSON lines, parquet or a data set of the hub -> a prepared folder.

inputs.py finds the files, pieces.py cuts them, records.py reads documents, piece.py makes one piece, plan.py is what a
second run goes on from, room.py looks at the disk first, conduct.py spreads pieces over processes. The format of the
result is trainer/data/prepared.py, which reads it.
"""
