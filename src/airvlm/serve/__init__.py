"""An OpenAI-compatible server over one VLM: requests that wait run together, each under its own method."""
