"""Training of the embedded emoji model: data, vision pre-training, alignment, joint training. Not installed."""
