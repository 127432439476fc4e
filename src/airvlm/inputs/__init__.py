"""From a request to tensors: reading images, writing prompts, the model's inputs, and one cache per model."""
