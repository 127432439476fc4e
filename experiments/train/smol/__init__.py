"""Training of smol, a LLaVA of CLIP ViT-B/16 and SmolLM2-135M-Instruct. Not installed."""
