"""Qwen-VL and Qwen-VL-Chat, on transformers' own Qwen2 decoder."""
