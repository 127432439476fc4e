"""Training of the embedded photograph model: from photographs and their objects to a small LLaVA. Not installed."""
