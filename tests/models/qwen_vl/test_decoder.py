"""The two rules of Qwen-VL's decoder for long prompts, by themselves."""

import math

import torch

from airvlm.models.qwen_vl.decoder import QwenVLRotary, QwenVLTextConfig, ntk_alpha


def test_ntk_alpha_steps_at_powers_of_two_of_the_length() -> None:
    lengths = torch.tensor([1, 2048, 2049, 4096, 4097, 8192, 8193])
    assert ntk_alpha(lengths, 2048).tolist() == [1, 1, 3, 3, 7, 7, 15]


def test_log_n_begins_after_seq_length() -> None:
    config = QwenVLTextConfig(hidden_size=64, num_attention_heads=4, head_dim=16, seq_length=8)
    rope = QwenVLRotary(config).eval()(torch.arange(16)[None], torch.tensor([16]))
    assert rope.logn is not None
    wanted = [max(math.log(n) / math.log(8), 1.0) for n in range(1, 17)]
    torch.testing.assert_close(rope.logn.flatten(), torch.tensor(wanted))


def test_each_row_has_its_own_base() -> None:
    config = QwenVLTextConfig(hidden_size=64, num_attention_heads=4, head_dim=16, seq_length=8)
    rotary = QwenVLRotary(config).eval()
    positions = torch.arange(4).expand(2, -1)
    both = rotary(positions, torch.tensor([4, 9]))
    assert torch.equal(both.cos[0], rotary(positions[:1], torch.tensor([4])).cos[0])
    assert torch.equal(both.cos[1], rotary(positions[:1], torch.tensor([9])).cos[0])
    assert not torch.equal(both.cos[0], both.cos[1])
