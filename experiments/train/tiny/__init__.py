"""The recipe of the embedded model: data, vision pre-training, alignment, joint training, export. Not installed."""
